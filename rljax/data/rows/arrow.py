"""Rows of parquet and Arrow files, and of folders written by ``save_to_disk``, by pyarrow."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rljax.data import documents, rows, storage
from rljax.data.rows import text
from rljax.language import messages

try:
    import pyarrow
    import pyarrow.parquet
except ImportError as error:
    raise ValueError("parquet and Arrow files need pyarrow: pip install pyarrow") from error

_BATCH = 1024  # rows that are converted at once


class Table(rows.Part):
    """The rows of a table in memory, converted when they are read."""

    def __init__(self, name: str, table: Any):
        self._name, self._table = name, table

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._table.slice(index, 1).to_pylist()[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._table.to_batches(max_chunksize=_BATCH):
            yield from batch.to_pylist()

    def columns(self) -> Mapping[str, int]:
        """Return for each column how many rows have a value."""
        names = self._table.column_names
        return {name: len(self) - self._table.column(name).null_count for name in names}


def read(file: str, format: str) -> Sequence[Table]:
    """Return the rows of a file, or of the shards of a folder written by ``save_to_disk``."""
    folder = storage.path(file)
    if not storage.is_dir(folder):
        return [_table(file, format)]
    shards = documents.read(folder / "state.json").get("_data_files")
    try:
        names = [str(shard["filename"]) for shard in shards or ()]
    except (TypeError, KeyError):
        names = []
    if not names:
        raise ValueError(f"{file}: state.json lists no files in _data_files; write the folder again by save_to_disk")
    return [_table(f"{file.rstrip('/')}/{name}", "arrow") for name in names]


def _table(file: str, format: str) -> Table:
    size = documents.size(storage.path(file))
    if size > text.LARGEST:
        raise ValueError(f"{file}: {size:,} bytes, expected at most {text.LARGEST:,}")
    try:
        with _source(file) as source:
            if format == "parquet":
                reader = pyarrow.parquet.ParquetFile(source)
                table = _limited(file, reader.iter_batches(_BATCH), reader.schema_arrow)
            elif source.read(6) == b"ARROW1":
                reader = pyarrow.ipc.open_file(source)
                table = _limited(file, map(reader.get_batch, range(reader.num_record_batches)), reader.schema)
            else:
                source.seek(0)
                reader = pyarrow.ipc.open_stream(source)
                table = _limited(file, reader, reader.schema)
            table.validate(full=True)  # texts are UTF-8, offsets are inside
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        raise ValueError(f"{file}: a damaged {format} file: {messages.shown(str(error))}") from error
    if len(set(table.column_names)) < len(table.column_names):
        raise ValueError(f"{file}: a column twice: {messages.shown(table.column_names)}")
    return Table(file, table)


def _limited(file: str, batches: Iterable[Any], schema: Any) -> Any:
    """Return batches as a table; ValueError if they need more memory than a file may have: compression has no bound."""
    kept, size, count = [], 0, 0
    for batch in batches:
        kept.append(batch)
        if (count := count + batch.num_rows) > text.MOST_ROWS:  # repeated rows take next to no room in a file
            raise ValueError(f"{file}: more than {text.MOST_ROWS:,} rows")
        if (size := size + batch.nbytes) > text.LARGEST:
            raise ValueError(f"{file}: more than {text.LARGEST:,} bytes uncompressed")
    return pyarrow.Table.from_batches(kept, schema)


def _source(file: str) -> Any:
    if storage.remote(file):
        return pyarrow.BufferReader(storage.read(file))
    return pyarrow.memory_map(str(storage.path(file)))  # Arrow files stay on the disk
