"""A host of files and answers for tests of CPU utilisation; nothing of the real one is read."""

from __future__ import annotations

from collections.abc import Mapping

ECS = "http://169.254.170.2/v4/0f3e"
POD = "/var/run/secrets/kubernetes.io/serviceaccount/token"


class FakeHost:
    """files: by path; None stands for one that cannot be read. asked: addresses, and "ec2"."""

    def __init__(
        self,
        files: Mapping[str, str | None],
        environment: Mapping[str, str] | None = None,
        *,
        answers: Mapping[str, str] | None = None,
        ec2: bool = False,
    ) -> None:
        self.files = dict(files)
        self.answers = dict(answers or {})
        self.asked: list[str] = []
        self._environment, self._ec2 = environment or {}, ec2

    def environment(self, name: str) -> str:
        return self._environment.get(name, "")

    def exists(self, path: str) -> bool:
        return path in self.files

    def read(self, path: str) -> str:
        text = self.files.get(path)
        if text is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return text

    def get(self, url: str) -> str:
        self.asked.append(url)
        if url not in self.answers:
            raise TimeoutError("timed out")
        return self.answers[url]

    def is_ec2(self) -> bool:
        self.asked.append("ec2")
        return self._ec2


def proc_text(used: int, idle: int) -> str:
    """/proc/stat after so many ticks."""
    return f"cpu  {used} 0 0 {idle} 0 0 0 0 0 0\ncpu0 0 0 0 0 0\n"
