"""One conversation, as text and in parts, and a template with a variable."""

CHAT = [{"role": "user", "content": "Hello!"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]
# Qwen3's idea: a variable that turns thinking off.
THINKING = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if tools %}tools: {{ tools | length }}\n{% endif %}"
    "{% if add_generation_prompt %}assistant:{% if enable_thinking is defined and not enable_thinking %} no thoughts"
    "{% endif %}{% endif %}"
)
