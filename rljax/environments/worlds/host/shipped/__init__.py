"""Host worlds that ship: tools, an interpreter, search, games, and environments of other libraries.

Worker processes import this package, so it does not import jax at the top.

===================  =======================================================================================
``adapters/``        environments of other libraries as host worlds. Each needs its package, an extra of the
                     installation
``arena.py``         games of textarena
``assisted.py``      questions of files, or made here, with the calls that demonstrations make
``constructors.py``  the worlds that ship: ``tools``, ``python_tool``, ``search``, ``textarena``
``interpreter.py``   a Python interpreter as a tool, in the sandbox of ``verifiers``
``passages.py``      search over a folder of texts as a tool, by BM25
``tools.py``         ``ToolWorld``: a question, calls of tools, an answer
===================  =======================================================================================
"""
