"""Two hosts on one machine: namespaces of their own for network, names, processes and mounts.

    unshare --user --map-root-user --net --mount --pid --fork --kill-child \\
        python -m tests.hosts.cluster FOLDER KILLED COMMAND...

runs COMMAND on each of them, with HOST (0 or 1) set, and its output in FOLDER/HOST. A cable of two
virtual ends is all that connects them; every host has its own /dev/shm and knows the names of both.
Host KILLED, if it is one, is killed with all that runs there as soon as there is FOLDER/kill.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ADDRESSES = ("10.99.0.1", "10.99.0.2")
CABLE = "cable"
"""The name of its end on every host."""
UNSHARED = ("unshare", "--net", "--uts", "--mount")
# Nothing runs before the cable is there. The last process is the first of its host: when that is
# killed, so is all the rest.
SCRIPT = f"""
set -e
hostname "host-$HOST"
mount --bind "$NAMES" /etc/hosts
mount -t tmpfs -o size=256m tmpfs /dev/shm
read -r ready
ip link set lo up
ip address add "$ADDRESS/24" dev {CABLE}
ip link set {CABLE} up
exec unshare --pid --fork --kill-child --mount-proc "$@"
"""


def start(host: int, folder: Path, command: list[str]) -> subprocess.Popen[bytes]:
    with (folder / str(host)).open("wb") as output:
        return subprocess.Popen(
            [*UNSHARED, "sh", "-c", SCRIPT, "sh", *command],
            env={
                **os.environ,
                "HOST": str(host),
                "ADDRESS": ADDRESSES[host],
                "NAMES": str(folder / "hosts"),
            },
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def in_namespaces(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has left those of this process."""
    return os.readlink(f"/proc/{process.pid}/ns/uts") != os.readlink("/proc/self/ns/uts")


def connect(hosts: list[subprocess.Popen[bytes]]) -> list[int]:
    """Lay the cable, and let the hosts start. Returns what keeps the cable: with the network of a
    host that is killed, the other would lose its own end, too."""
    while not all(map(in_namespaces, hosts)):
        time.sleep(0.01)
    networks = [os.open(f"/proc/{host.pid}/ns/net", os.O_RDONLY) for host in hosts]
    ends = [f"{CABLE}-{host}" for host in range(len(hosts))]
    ip = "ip", "link"
    subprocess.run([*ip, "add", ends[0], "type", "veth", "peer", "name", ends[1]], check=True)
    for end, host in zip(ends, hosts, strict=True):
        subprocess.run([*ip, "set", end, "netns", str(host.pid), "name", CABLE], check=True)
    for host in hosts:
        assert host.stdin is not None
        host.stdin.write(b"ready\n")
        host.stdin.close()
    return networks


def main() -> None:
    folder, killed, command = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    # Stores and gloo look names up, and wait for long where nobody answers.
    names = [f"{address} host-{host}\n" for host, address in enumerate(ADDRESSES)]
    (folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *names]))
    hosts = [start(host, folder, command) for host in range(len(ADDRESSES))]
    networks = connect(hosts)
    while any(host.poll() is None for host in hosts):
        if killed >= 0 and (folder / "kill").exists():
            hosts[killed].kill()
        time.sleep(0.05)
    for network in networks:
        os.close(network)
    codes = [host.returncode for number, host in enumerate(hosts) if number != killed]
    sys.exit(int(any(codes)))


if __name__ == "__main__":
    main()
