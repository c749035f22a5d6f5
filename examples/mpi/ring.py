"""Ranks in a ring pass blocks of bytes on and check them; from time to time all agree. Run it with `-m mpi4py`, so that a
rank which finds something wrong ends all."""

import sys
from mpi4py import MPI

LENGTHS = (1, 100, 4096, 70_000, 500_000)

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
left, right = (rank - 1) % size, (rank + 1) % size


def block(sender, turn, length):
    pattern = f"{sender} in {turn}, ".encode()
    return (pattern * (length // len(pattern) + 1))[:length]


turns = int(sys.argv[1])
for turn in range(turns):
    length = LENGTHS[turn % len(LENGTHS)]
    received = bytearray(length)
    world.Sendrecv(block(rank, turn, length), right, 1, received, left, 1)
    assert received == block(left, turn, length), (turn, length, received[:100])
    if turn % 100 == 0:
        assert world.allreduce(rank) == size * (size - 1) // 2
        if rank == 0:
            print(f"{turn} turns", flush=True)
blocks = world.allreduce(turns)
if rank == 0:
    print(f"{size} ranks passed {blocks} blocks on, each as it was sent")
