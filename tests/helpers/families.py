"""Variants of every family, with all that a checkpoint's config can say."""

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, **LLAMA3}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
# Windows are shorter than every prompt below that is compared in full.
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama-mha-tied": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-mqa-biases": ("llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
    "llama-attention-bias": ("llama", {"attention_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 24}),
    "llama-gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama-rope-linear": ("llama", {"rope_parameters": LINEAR_ROPE}),
    "llama-rope-llama3": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "qwen3-rope-yarn": ("qwen3", {"rope_parameters": YARN_ROPE}),
    "mistral-head-dim": ("mistral", {"head_dim": 8, "sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 5, "rms_norm_eps": 1e-3}),
    "qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2-window-tied": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen2-window-off": ("qwen2", {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "qwen3-mqa-tied": ("qwen3", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen3-window-bias": (
        "qwen3",
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 2,
            "rope_parameters": LLAMA3_ROPE,
        },
    ),
    "gemma3": ("gemma3", {}),
    "gemma3-softcap-untied-biases": (
        "gemma3",
        {"final_logit_softcapping": 0.2, "tie_word_embeddings": False, "attention_bias": True},
    ),
    "gemma3-pattern-two-ropes": (
        "gemma3",
        {
            "layer_types": None,
            "sliding_window_pattern": 2,
            "sliding_window": 4,
            "head_dim": 24,
            "num_key_value_heads": 1,
            "rope_parameters": {
                "full_attention": LINEAR_ROPE,
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            },
        },
    ),
    "phi3": ("phi3", {}),
    "phi3-mqa-window-tied": ("phi3", {"num_key_value_heads": 1, "sliding_window": 5, "tie_word_embeddings": True}),
    "phi3-head-dim": ("phi3", {"head_dim": 24, "num_key_value_heads": None}),
    "qwen3-moe": ("qwen3_moe", {}),
    "qwen3-moe-every-second-layer": (
        "qwen3_moe",
        {"decoder_sparse_step": 2, "mlp_only_layers": [], "num_experts_per_tok": 3, "norm_topk_prob": False},
    ),
    "qwen3-moe-window-bias-one-expert": (
        "qwen3_moe",
        {"use_sliding_window": True, "sliding_window": 5, "attention_bias": True, "num_experts_per_tok": 1},
    ),
    "qwen2-moe": ("qwen2_moe", {}),
    "qwen2-moe-window-all-experts": (
        "qwen2_moe",
        {"use_sliding_window": True, "sliding_window": 4, "qkv_bias": False, "num_experts_per_tok": 6},
    ),
    "olmoe": ("olmoe", {}),
    "olmoe-mqa-biases": ("olmoe", {"num_key_value_heads": 1, "attention_bias": True, "norm_topk_prob": True}),
    "mixtral": ("mixtral", {}),
    "mixtral-window-tied": ("mixtral", {"sliding_window": 5, "head_dim": 24, "tie_word_embeddings": True}),
}
