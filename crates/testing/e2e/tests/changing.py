"""Memory that changes all the time, and is checked before each change.

`changing.py ALL SOME FILE` fills ALL MiB with what tells each page and its round, half of them private and half shared, and gives
the pages of the first SOME MiB round after round new contents: each must be as it was left. It prints a line for each round, and
when FILE is there `right`, if all is as it must be. With a fourth argument the memory is that of two files in this folder, the second of
which has another name and a hole.
"""

import mmap
import os
import struct
import sys

PAGE = 4096
ALL, SOME = (int(mebibytes) << 20 for mebibytes in sys.argv[1:3])
HOLE = 1 << 20


def in_file(name, hole):
    file = os.open(name, os.O_RDWR | os.O_CREAT, 0o640)
    os.ftruncate(file, hole + ALL // 2)
    # CRIU looks at its begin at the dump; it is no hole any more then.
    os.pwrite(file, b"begin", 0)
    return mmap.mmap(file, ALL // 2, offset=hole)


def is_as_it_was(folder):
    second, other = (os.stat(f"{folder}/{name}") for name in ("second", "other"))
    is_one = (second.st_ino, second.st_nlink, second.st_mode & 0o777) == (other.st_ino, 2, 0o640)
    return is_one and second.st_blocks * 512 <= PAGE + ALL // 2 and os.stat(f"{folder}/first").st_size == ALL // 2


if len(sys.argv) > 4:
    HALVES = [in_file(f"{sys.argv[4]}/first", 0), in_file(f"{sys.argv[4]}/second", HOLE)]
    os.link(f"{sys.argv[4]}/second", f"{sys.argv[4]}/other")
else:
    kinds = mmap.MAP_PRIVATE, mmap.MAP_SHARED
    HALVES = [mmap.mmap(-1, ALL // 2, flags=kind | mmap.MAP_ANONYMOUS) for kind in kinds]


def contents(page, turn):
    return struct.pack("<QQ", page, turn) * (PAGE // 16)


def write(page, turn):
    HALVES[page % 2][page // 2 * PAGE : (page // 2 + 1) * PAGE] = contents(page, turn)


def check(page, turn):
    found = HALVES[page % 2][page // 2 * PAGE : (page // 2 + 1) * PAGE]
    if found != contents(page, turn):
        sys.exit(f"page {page} is wrong in round {turn}: {found[:16].hex()}")


for page in range(ALL // PAGE):
    write(page, 0)
turn = 0
while not os.path.exists(sys.argv[3]):
    for page in range(SOME // PAGE):
        check(page, turn)
        write(page, turn + 1)
    turn += 1
    print("round", turn, flush=True)
for page in range(ALL // PAGE):
    check(page, turn if page < SOME // PAGE else 0)
if len(sys.argv) > 4 and not is_as_it_was(sys.argv[4]):
    sys.exit("its files are not as they were")
print("right", flush=True)
