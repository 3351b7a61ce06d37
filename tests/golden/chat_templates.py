"""What chat templates render: chat/expected.json, from the templates beside it, by jinja2 as Hugging Face sets it up.

The templates are written for these tests in the manner of the models they are named after. Each case of
the output has `template`, `messages`, `tools`, `add_generation_prompt`, and `text`, or `error` if the template
refuses.
"""

import json
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = Path(__file__).resolve().parent / "chat"
BOS, EOS = "<s>", "</s>"


def message(role, content):
    return {"role": role, "content": content}


USER = [message("user", "What is 2 < 3 & 'so'?")]
DIALOG = [
    message("system", "  Be brief.  "),
    message("user", "Hi 🙂\n"),
    message("assistant", "<think>\nA greeting.\n</think>\n\nHello!  "),
    message("user", " And <|im_end|> in a text?"),
]
ANSWERED = [message("user", "Hi"), message("assistant", "<think>\nA greeting.\n</think>\n\nHello!")]
WRONG = [message("user", "Hi"), message("critic", "Ho"), message("critic", "Hum")]
# Keys in alphabetical order, which is how tools are passed on.
TOOLS = [{"function": {"description": "The <weather> in a «city»", "name": "weather", "parameters": {}}, "type": "function"}]


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def raise_exception(text):
        raise jinja2.TemplateError(text)

    env.globals["raise_exception"] = raise_exception
    env.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    return env


def main():
    cases = []
    for path in sorted(FOLDER.glob("*.jinja")):
        template = environment().from_string(path.read_text())
        for messages, tools in [(USER, None), (DIALOG, None), (ANSWERED, None), (WRONG, None), (DIALOG, TOOLS)]:
            for generate in [True, False]:
                case = {"template": path.name, "messages": messages, "tools": tools, "add_generation_prompt": generate}
                try:
                    case["text"] = template.render(
                        messages=messages, tools=tools, add_generation_prompt=generate, bos_token=BOS, eos_token=EOS
                    )
                except jinja2.TemplateError as error:
                    case["error"] = str(error)
                cases.append(case)
    lines = [json.dumps(case, ensure_ascii=False) for case in cases]
    (FOLDER / "expected.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{len(cases)} cases, {sum('error' in case for case in cases)} refused")


if __name__ == "__main__":
    main()
