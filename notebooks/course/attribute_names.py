"""Which attribute was meant, when code asks an object for one that it does not have."""

import re
from difflib import get_close_matches

# Names that libraries, papers and this package have for the same thing; an object has one of each line at most.
SAME_THING = (
    "num_attention_heads num_heads n_heads n_head num_q_heads num_query_heads heads H",
    "num_key_value_heads num_kv_heads n_kv_heads n_kv_head n_head_kv kv_heads num_query_groups head_num Hk",
    "num_hidden_layers num_layers n_layers n_layer layers layer_num L",
    "head_dim head_size d_head dim_head dim_per_head d_k D",
    "hidden_size d_model n_embd embed_dim embedding_dim dim hidden_dim model_dim",
    "intermediate_size d_ff ffn_dim ffn_hidden_size mlp_dim n_inner",
    "vocab_size n_vocab vocab V",
    "max_position_embeddings max_context_len max_model_len max_seq_len context_length n_ctx n_positions block_size max_len",
    "rms_norm_eps norm_eps layer_norm_eps layer_norm_epsilon eps epsilon",
    "rope_theta rope_base rotary_base theta base",
    "tie_word_embeddings tied_embeddings weight_tying",
    "page_size block_size tokens_per_block P",
    "seq_lens context_lens kv_lens cache_seqlens sequence_lengths",
    "prefix_lens cached_lens num_computed_tokens",
    "out_cache_loc slot_mapping slots slot_indices",
    "req_to_token block_tables block_table page_table",
    "req_pool_indices req_indices row_indices rows",
    "qo_indptr query_start_loc cu_seqlens_q",
    "kv_indptr cu_seqlens_k cu_seqlens_kv",
    "available_size num_free num_free_blocks free_size num_available",
    "key tokens token_ids",
    "value values slots indices",
    "lock_ref ref_count refcount ref_cnt locks",
    "hit_count hits access_count",
)
_LISTED = 12  # an object with more attributes than these is not listed
_BRACKETS = re.compile(r"'[\w.]+' object is not subscriptable")
_WITHOUT_FIELDS = re.compile(r"'(NoneType|bool|int|float|complex|generator|function|method|builtin\w*)'")


def name_meant(error: BaseException) -> str:
    """A sentence that names the attribute that was meant where an AttributeError arose, or the few there are, or "".

    Where an object was taken for a dict, says how a field is read. Never raises, whatever the object of the error is.
    """
    if type(error) is TypeError and _BRACKETS.fullmatch(str(error)) and not _WITHOUT_FIELDS.match(str(error)):
        return 'A field of an object is read with a dot: `x.name`, not `x["name"]`.'
    if not isinstance(error, AttributeError) or not error.name or error.obj is None:
        return ""
    try:
        present = [name for name in dir(error.obj) if not name.startswith("_")]
        if meant := _meant(error.name, present):
            is_method = callable(getattr(error.obj, meant))
            return f"The {'method' if is_method else 'field'} is called `{meant}`."
        fields = [name for name in vars(error.obj) if not name.startswith("_")]
    except Exception:  # the object is the student's, and may raise whatever it is asked
        return ""
    return f"It has {', '.join(f'`{name}`' for name in fields)}." if 0 < len(fields) <= _LISTED else ""


def _meant(name: str, present: list[str]) -> str | None:
    """That of the names `present` that means the same as `name`, or else that is spelt like it or like a name for it.

    None where `name` means, or is spelt most like, something that the object does not have: `head_size` looks like
    `hidden_size` and is something else.
    """
    names = {
        other: field for line in SAME_THING for field in line.split() if field in present for other in line.split()
    }
    if name in names:
        return names[name]
    words = set(" ".join(SAME_THING).split())
    others = set(present) - words  # fields that no line has, so that only their spelling tells
    close = get_close_matches(name, others, 1, 0.85) or get_close_matches(name, words | others, 1)
    return next((names.get(word, word if word in others else None) for word in close), None)
