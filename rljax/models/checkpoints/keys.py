"""The keys of config.json that are not read: those that do not change what a model computes, and those that may.

A family names the keys that it reads (``table.Family.read``). Any other key must be harmless, or have a value
that means that nothing is different; a key that is in no list is refused. Sources: the configuration classes of
transformers 4.57 and 5, and the published folders of the families.
"""

import typing
from collections.abc import Collection, Mapping
from typing import Any

from rljax.language import hints, messages
from rljax.models.architectures import Architecture

_HINTS = typing.get_type_hints(Architecture, include_extras=True)

# names, versions, types, tokens, training, generation: no effect on the logits of a sequence
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _experts_implementation _flash_attn_2_enabled
    _name_or_path _sliding_window_pattern architectures assistant_confidence_threshold assistant_lookbehind
    attention_dropout attn_implementation bad_words_ids begin_suppress_tokens bos_token bos_token_id
    cache_implementation chunk_size_feed_forward decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping embd_pdrop encoder_no_repeat_ngram_size encoder_repetition_penalty eos_token eos_token_id
    epsilon_cutoff eta_cutoff experts_implementation exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_dropout hidden_dropout_prob id2label
    initializer_range is_decoder is_llama_config label2id length_penalty max_length max_new_tokens
    max_position_embeddings max_sequence_length min_length model_max_length model_type name_or_path
    no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams num_labels
    num_logits_to_keep num_return_sequences output_attentions output_hidden_states output_router_logits
    output_scores pad_token pad_token_id prefix pretraining_tp problem_type remove_invalid_values repetition_penalty
    resid_pdrop return_dict return_dict_in_generate router_aux_loss_coef sep_token_id sliding_window_size
    summary_activation suppress_tokens target_lookbehind task_specific_params temperature tf_legacy_loss
    tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config transformers_version typical_p
    unsloth_fixed unsloth_version use_bfloat16 use_cache
    """.split()
)

# tokens around pictures, in the outer config of a multimodal model: no effect on the logits of a sequence
TOKENS = frozenset(
    """
    boi_token_id boi_token_index eoi_token_id eoi_token_index video_token_id vision_end_token_id
    vision_start_token_id vision_token_id
    """.split()
)
# of that config: ``text_config`` has the decoder's keys
OUTER = frozenset("text_config tie_word_embeddings vision_config".split())

# keys that change what a model computes, or what the weights are, unless null or one of these values
EXPECTED: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),
    "attn_logit_softcapping": (),
    "auto_map": (),  # the folder has its own model code, which is never run
    "compression_config": (),
    "cross_attention_hidden_size": (),
    "decoder_sparse_step": (1,),
    "final_logit_softcapping": (),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "mlp_bias": (False,),
    "mlp_only_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "partial_rotary_factor": (1,),
    "per_layer_config": ({},),
    "pruned_heads": ({},),
    "quantization": (),
    "quantization_config": (),
    "rope_interleaved": (False,),
    "rope_local_base_freq": (),
    "sliding_window": (),
    "sliding_window_pattern": (),
    "tie_encoder_decoder": (False,),
    "use_bidirectional_attention": (False,),
    "use_mrope": (False,),
    "use_qk_norm": (),
    "use_sliding_window": (False,),
}


def check(config: Mapping[str, Any], read: Collection[str], expected: Mapping[str, tuple[Any, ...]], of: str) -> None:
    """Check that every key is read, harmless, or has a value that changes nothing.

    Args:
      config: an object of config.json.
      read: the keys that are read.
      expected: key -> values that change nothing, in addition to null; they replace the values of ``EXPECTED``.
      of: what the object describes, for the message.

    Raises:
      ValueError: a key is unknown, or has another value; it is named.
    """
    expected = {**EXPECTED, **expected}
    for key, value in config.items():
        if key in read or key in HARMLESS:
            continue
        if key not in expected:
            raise ValueError(
                f"config.json: {messages.shown(key)} is unknown ({of}); remove it if it does not change what the model "
                f"computes.{messages.hint(key[:40], {*read, *HARMLESS, *expected})}"
            )
        if value is not None and value not in expected[key]:
            allowed = " or ".join(map(repr, (*expected[key], None)))
            raise ValueError(f"config.json: {key}={messages.shown(value)} is not supported ({of}): must be {allowed}")


def value(config: Mapping[str, Any], key: str, of: Any) -> Any:
    """Return the value of a key, checked against an annotation.

    Args:
      config: an object of config.json.
      key: the key.
      of: the annotation, or the name of a field of ``Architecture``, which has it.

    Raises:
      ValueError: the key is missing or null, or its value does not fit.
    """
    if config.get(key) is None:
        raise ValueError(f"config.json: {key!r} is missing or null")
    if problem := hints.mismatch(config[key], _HINTS[of] if isinstance(of, str) else of):
        raise ValueError(f"config.json: {key}={messages.shown(config[key])}: must be {problem}")
    return config[key]


def agreed(key: str, *values: Any) -> Any:
    """Return the value that is not None, None if there is none.

    Raises:
      ValueError: there are several, and they differ.
    """
    given = [value for value in values if value is not None]
    if any(value != given[0] for value in given):
        raise ValueError(f"config.json: {key} is given as {' and as '.join(map(messages.shown, given))}")
    return given[0] if given else None
