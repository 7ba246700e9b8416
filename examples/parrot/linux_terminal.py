"""One call for each line that a user types, after a long constant beginning with single braces in it.

echo "ls -l" | python examples/parrot/linux_terminal.py
"""

import sys
from collections.abc import Iterable, Iterator

from stretto import Runtime
from stretto import programs as P
from stretto.engines import llm_engine


@P.SemanticFunction
def terminal(command: P.SemanticVariable, screen: P.Output = P.Output(max_tokens=120, stop=["$ "])) -> None:
    """You play a terminal of Linux. I type commands, and you reply with what the terminal would show. Show
    the terminal's output in one block of code, and nothing else. Write no explanations. Do not type commands
    unless I tell you to. When I need to tell you something in English, I put it in curly brackets {like
    this}. Do not show what is in such brackets, nor the brackets { and }. A file that does not exist is
    reported as the usual program would. The user is called guest, and the home directory is /home/guest.

    My command is: {{command}}
    The screen shows: {{screen}}
    Wait for my next command."""


def main(commands: Iterable[str]) -> Iterator[str]:
    for command in commands:
        yield terminal(command.strip()).get(P.LATENCY)


if __name__ == "__main__":
    with Runtime([llm_engine(None)]) as runtime, P.Client(runtime):
        for screen in main(sys.stdin):
            print(screen)
