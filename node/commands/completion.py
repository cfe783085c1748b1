"""`intellect-node completion bash|zsh|fish`: a script that asks the program itself for completions.

The answers come from the commands' own parsers, so completion is always up to date with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from node.cli import COMMANDS, ROLES_BY_USE, command_of
from node.parsing import Parser, described, print_line

if TYPE_CHECKING:
    import argparse

ASK = "--words"
"""What the scripts call: `completion --words WORD..`; the last word is the one under the cursor."""
SCRIPTS = {
    "bash": """\
_intellect_node() {
    local IFS=$'\\n'
    COMPREPLY=($(intellect-node completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1))
}
complete -o bashdefault -o default -F _intellect_node intellect-node""",
    "zsh": """\
#compdef intellect-node
_intellect_node() {
    local -a found
    found=("${(@f)$(intellect-node completion --words "${(@)words[2,CURRENT]}" 2>/dev/null | sed 's/:/\\\\:/g; s/\\t/:/')}")
    if [[ -n "${found[1]}" ]]; then _describe intellect-node found; else _files; fi
}
compdef _intellect_node intellect-node""",
    "fish": """\
function __intellect_node_words
    set -l words (commandline -opc) (commandline -ct)
    intellect-node completion --words $words[2..-1] 2>/dev/null
end
complete -c intellect-node -a '(__intellect_node_words)'""",
}
EXAMPLES = """\
  eval "$(intellect-node completion bash)"                    in ~/.bashrc
  eval "$(intellect-node completion zsh)"                     in ~/.zshrc, after compinit
  intellect-node completion fish > ~/.config/fish/completions/intellect-node.fish
"""
Candidate = tuple[str, str]
"""A word that is valid here, and what it means."""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    if words and words[0] == ASK:
        for word, text in candidates(words[1:]):
            print_line(f"{word}\t{text}")
        return 0
    parser = Parser("intellect-node completion", "Print a shell's completion script.", examples=EXAMPLES)
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="your shell")
    print_line(SCRIPTS[parser.parse_args(words).shell])
    return 0


def candidates(words: Sequence[str]) -> list[Candidate]:
    """Candidates for the last word, given those before it. Empty where a file name is expected."""
    *before, current = words or [""]
    return [(word, text) for word, text in _possible(before, current) if word.startswith(current)]


def _possible(before: Sequence[str], current: str) -> Iterator[Candidate]:
    if not before:
        yield from COMMANDS.items()
    is_named = bool(before) and before[0] in COMMANDS
    if before and not is_named and not before[0].startswith("-"):
        return
    parser = described(command_of(before[0] if is_named else "node"))
    if parser is None:
        return
    taker = parser.action_of(before[-1]) if before else None
    if taker is not None and taker.nargs != 0:
        yield from _values(taker)
    elif current.startswith("-"):
        for action in parser.all_actions():
            if action.option_strings:
                yield action.option_strings[-1], _first_sentence(action.help)
    elif is_named:
        for action in parser.positionals():
            yield from _values(action)


def _values(action: argparse.Action) -> Iterator[Candidate]:
    if action.choices is not None:
        yield from ((str(choice), "") for choice in action.choices)
    elif action.dest == "role":
        yield from ((role, "") for role in ROLES_BY_USE)
    elif action.dest == "log_level":
        from node.config import NodeConfig

        yield from ((level, "") for level in get_args(NodeConfig.model_fields["log_level"].annotation))


def _first_sentence(text: str | None) -> str:
    return (text or "").partition(". ")[0].rstrip(".").replace("%%", "%")
