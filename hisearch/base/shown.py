"""How results show themselves at a prompt: a line of text, and a table where a notebook asks for one."""

from __future__ import annotations

from html import escape


class Shown:
    """Shows itself by ``facts``. A dataclass that inherits from it is declared with ``repr=False``."""

    def facts(self) -> dict[str, str]:
        """What a reader wants to know first: label -> text, most important first, at most eight."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{label}: {text}' for label, text in self.facts().items())})"

    def _repr_html_(self) -> str:
        rows = (
            f'<tr><th scope="row" style="text-align:left">{escape(label)}</th>'
            f'<td style="text-align:left">{escape(text)}</td></tr>'
            for label, text in self.facts().items()
        )
        return f"<table><caption>{escape(type(self).__name__)}</caption>{''.join(rows)}</table>"
