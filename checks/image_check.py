"""Do the steps of the Dockerfile build something that serves?

    python -m checks.image_check [--base DIR]

Runs the steps of `deploy/Dockerfile` in a chroot, on an overlay over a bare Debian, which `debootstrap` makes
where no `--base` is given. Then emulated servers and a door run there, as the image's user with the image's
command, and a chat is asked through the door. Without root, `debootstrap`, or the right to mount, it says so
and checks nothing.
Prints a line for each step. Exit code 1 if a step fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
DOCKERFILE = CLONE / "deploy" / "Dockerfile"
SUITE = "bookworm"
LIMIT_S = 1800.0
_KNOWN = ("FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "EXPOSE", "ENTRYPOINT", "CMD")
_SERVERS = "emulate --model llama-2-7b --loading-s 0 --port {port}"
_DOOR = "serve --worker http://127.0.0.1:{port} --port {door}"
_PORT, _DOOR_PORT = 18731, 18732
_OF_MACHINE = (
    *("/etc/resolv.conf", "/etc/apt", "/etc/pip.conf", "/etc/ssl/certs"),
    *("/usr/share/keyrings", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"),
)
_MOUNTS = ("proc", "dev", "sys")


def read_dockerfile(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile. Raises ValueError for one that this check does not know."""
    steps = []
    for line in text.replace("\\\n", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        if name and not name.startswith("#"):
            if name not in _KNOWN:
                raise ValueError(f"the instruction {name} is not known here")
            steps.append((name, rest.strip()))
    return steps


def why_not() -> str:
    """Return why nothing can be checked here; "" if it can."""
    if os.geteuid() != 0:
        return "it needs root"
    mounting = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "" if mounting.returncode == 0 else "mounting is not allowed here"


@dataclass
class Image:
    """A file system in which the steps of a Dockerfile are run.

    Attributes:
        entrypoint: command that arguments follow.
    """

    root: Path
    directory: str = "/"
    user: str = "root"
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    entrypoint: list[str] = field(default_factory=list)

    def run(self, name: str, rest: str) -> None:
        """Run one instruction. Raises CalledProcessError if its command fails."""
        match name:
            case "RUN":
                subprocess.run(self.command("sh", "-c", rest), check=True, timeout=LIMIT_S)
            case "WORKDIR":
                self.directory = rest
                (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "COPY":
                *sources, target = rest.split()
                for source in sources:
                    self.copy(CLONE / source, self.root / self.directory.lstrip("/") / target)
            case "ENV":
                key, _, value = rest.partition("=")
                self.environment[key] = value
            case "USER":
                self.user = rest
            case "ENTRYPOINT":
                self.entrypoint = json.loads(rest)

    @staticmethod
    def copy(source: Path, target: Path) -> None:
        """Copy a file into a folder, or the content of a folder into another one."""
        if source.is_dir():
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=skipped)
        else:
            shutil.copy(source, target)

    def command(self, *words: str) -> list[str]:
        """Return a command that runs in the image, as its user, in its directory."""
        accounts = [line.split(":") for line in _text(str(self.root / "etc/passwd")).splitlines()]
        homes = {account[0]: account[5] for account in accounts}
        found = {"HOME": homes.get(self.user, "/"), **self.environment}
        variables = [f"{key}={value}" for key, value in found.items()]
        inner = f"cd {shlex.quote(self.directory)} && exec {shlex.join(words)}"
        return [
            "chroot",
            f"--userspec={self.user}",
            str(self.root),
            "env",
            "-i",
            *variables,
            "sh",
            "-c",
            inner,
        ]


def build(image: Image) -> None:
    """Run all steps of the Dockerfile."""
    for name, rest in read_dockerfile(DOCKERFILE.read_text("utf-8")):
        begun_s = time.monotonic()
        image.run(name, rest)
        print(f"ok  {time.monotonic() - begun_s:6.1f} s  {name} {rest[:80]}", flush=True)


def share_with(root: Path) -> None:
    """Give an image what this machine needs to reach packages: names, settings of apt and pip, and files that
    these name.
    """
    shutil.rmtree(root / "etc/apt", ignore_errors=True)
    wanted = [value for key, value in os.environ.items() if key.startswith("PIP_")]
    named = re.findall(r"/[\w./-]+", " ".join([*wanted, _text("/etc/pip.conf")]))
    for file in (*_OF_MACHINE, *(one for one in named if not one.startswith(("/usr", "//")))):
        if (path := Path(file)).exists() and path != Path("/"):
            target = root / file.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            follow = "-aT" if path.is_dir() else "-aLT"
            subprocess.run(["cp", follow, "--remove-destination", file, str(target)], check=True)


def mirror() -> list[str]:
    """Return where this machine takes Debian's packages from; nothing for the usual place."""
    for file in sorted(Path("/etc/apt").glob("sources.list.d/*.sources")):
        if found := re.search(r"^URIs: *(\S+)", _text(str(file)), re.MULTILINE):
            return [found[1]]
    return []


def _text(file: str) -> str:
    return Path(file).read_text("utf-8") if Path(file).exists() else ""


def serve(image: Image) -> None:
    """Run servers and a door in the image, and ask a chat. Raises OSError or AssertionError."""
    lines = (_SERVERS.format(port=_PORT), _DOOR.format(port=_PORT, door=_DOOR_PORT))
    running = [subprocess.Popen(image.command(*image.entrypoint, *line.split())) for line in lines[:1]]
    try:
        _answer(f"http://127.0.0.1:{_PORT}/health")
        running.append(subprocess.Popen(image.command(*image.entrypoint, *lines[1].split())))
        _answer(f"http://127.0.0.1:{_DOOR_PORT}/health")
        chat = {"model": "llm", "max_tokens": 3, "messages": [{"role": "user", "content": "Hello"}]}
        answer = json.loads(_answer(f"http://127.0.0.1:{_DOOR_PORT}/v1/chat/completions", chat))
        assert answer["usage"]["completion_tokens"] == 3, answer
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)
    print("ok  a chat through the door, as the image's user", flush=True)


def _answer(url: str, body: object = None, patience_s: float = 120.0) -> bytes:
    """Return the answer to a request, which is sent again until somebody listens."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    last_s = time.monotonic() + patience_s
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                content: bytes = answer.read()
                return content
        except OSError:
            if time.monotonic() > last_s:
                raise
            time.sleep(0.5)


def check(base: Path) -> None:
    """Build on an overlay over `base`, whose mounts end with this process, and serve."""
    with tempfile.TemporaryDirectory() as folder:
        upper, work, root = (Path(folder) / name for name in ("upper", "work", "root"))
        for one in (upper, work, root):
            one.mkdir()
        options = f"lowerdir={base},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(root)], check=True)
        mounted = [root]
        try:
            for name in _MOUNTS:
                (root / name).mkdir(exist_ok=True)
                subprocess.run(["mount", "--rbind", f"/{name}", str(root / name)], check=True)
                mounted.append(root / name)
            share_with(root)
            image = Image(root)
            image.environment |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
            build(image)
            serve(image)
        finally:
            for one in reversed(mounted):
                subprocess.run(["umount", "--recursive", "--lazy", str(one)], check=False)


def main() -> None:
    """Check the image."""
    parser = argparse.ArgumentParser(
        description="Do the steps of the Dockerfile build something that serves?"
    )
    parser.add_argument("--base", type=Path, help="folder with a bare Debian 12, in place of debootstrap")
    base = parser.parse_args().base
    reason = why_not()
    if not reason and base is None and shutil.which("debootstrap") is None:
        reason = "it needs debootstrap, or --base DIR"
    if reason:
        print(f"skipped: {reason}")
        return
    if os.environ.get("STRETTO_IMAGE_CHECK") is None:  # mounts of a namespace of its own end with it
        again = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.orig_argv[1:]]
        os.execvpe("unshare", again, {**os.environ, "STRETTO_IMAGE_CHECK": "1"})
    with tempfile.TemporaryDirectory() as folder:
        if base is None:
            base = Path(folder) / "base"
        try:
            if not base.exists():
                made = ["debootstrap", "--variant=minbase", SUITE, str(base), *mirror()]
                subprocess.run(made, check=True, timeout=LIMIT_S)
            check(base)
        except (subprocess.CalledProcessError, OSError, AssertionError, ValueError) as error:
            print(f"failed: {error!s:.500}")
            sys.exit(1)


if __name__ == "__main__":
    main()
