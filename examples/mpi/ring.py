"""Ranks in a ring pass blocks of bytes on and check them; from time to time all agree. As many turns as the argument says, or
until the file `enough` is there. Run it with `-m mpi4py`, so that a rank which finds something wrong ends all."""

import os
import sys
from mpi4py import MPI

LENGTHS = (1, 100, 4096, 70_000, 500_000)

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
left, right = (rank - 1) % size, (rank + 1) % size


def block(sender, turn, length):
    pattern = f"{sender} in {turn}, ".encode()
    return (pattern * (length // len(pattern) + 1))[:length]


def is_over(turn):
    """Whether all are to stop before a turn; all call this."""
    if turns is not None:
        return turn == turns
    return turn % 100 == 0 and world.bcast(os.path.exists("enough"))


turns = int(sys.argv[1]) if len(sys.argv) > 1 else None
turn = 0
while not is_over(turn):
    length = LENGTHS[turn % len(LENGTHS)]
    received = bytearray(length)
    world.Sendrecv(block(rank, turn, length), right, 1, received, left, 1)
    assert received == block(left, turn, length), (turn, length, received[:100])
    if turn % 100 == 0:
        assert world.allreduce(rank) == size * (size - 1) // 2
        if rank == 0:
            print(f"{turn} turns", flush=True)
    turn += 1
blocks = world.allreduce(turn)
if rank == 0:
    print(f"{size} ranks passed {blocks} blocks on, each as it was sent")
