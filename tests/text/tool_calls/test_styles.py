"""The chat template tells how a family writes tool calls."""

import pytest

from genwright.text.tokenizer.chat_template import find_template, template_names
from genwright.text.tool_calls import STYLES, tool_style

_CALLS, _CALL, _SEP, *_ = STYLES["deepseek"].markers
# What is typical of the published templates.
TEMPLATES = {
    '{%- if tools %}<tools>{% endif %}{{ \'<tool_call>\\n{"name": "\' }}': "hermes",
    "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS][": "mistral",
    "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]{{ name }}[ARGS]": "mistral-args",
    f"{{% if message['tool_calls'] %}}{_CALLS}{_CALL}{{{{ type }}}}{_SEP}{{{{ name }}}}\n```json": "deepseek",
    f"{{% if message['tool_calls'] %}}{_CALLS}{_CALL}{{{{ name }}}}{_SEP}": "deepseek-v3.1",
    "{% if tools %}<|python_tag|>{% endif %}": "llama3",
    "{% if tools %}<|python_start|>{% endif %}": "pythonic",
    "{% if tools %}<tool_call>\n<function=f>\n<parameter=p>{% endif %}": "qwen3-coder",
    "{% if tools %}<|python_tag|>{% endif %}<function=f>{}</function>": None,
    "{% if tools %}<tool_call>f\n<arg_key>k</arg_key>{% endif %}": None,
    "{{ messages }} <tool_call>": None,
}


@pytest.mark.parametrize(("template", "style"), TEMPLATES.items())
def test_style_of_a_template(template, style):
    assert tool_style(template) == style


def test_templates_of_this_package_have_no_tools_or_a_known_style():
    assert {tool_style(find_template(name)) for name in template_names()} <= {None, *STYLES}
