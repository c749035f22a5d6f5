"""All ranks compute together in ways of which each knows the right result: collectives, one-sided access under fences and locks,
and a file that they write and read as one. Until the file `enough` is there; rank 0 says how many turns it were. Run it with
`-m mpi4py`, so that a rank which finds something wrong ends all."""

import os
from array import array
from mpi4py import MPI

LENGTHS = (1, 1000, 40_000)

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
everyone = range(size)


def numbers(values):
    return array("q", values)


def block(owner, turn, length):
    """What `owner` contributes in a turn; no two blocks are alike."""
    begin = (turn * size + owner) * 1_000_003
    return numbers(range(begin, begin + length))


def expect(found, wanted, what, turn):
    assert found == wanted, f"{what} in turn {turn}: {found[:5]} came in the place of {wanted[:5]}, of {len(wanted)}"


def collectives(turn, length):
    mine = block(rank, turn, length)
    total = numbers([0]) * length
    world.Allreduce(mine, total)
    expect(total, numbers(map(sum, zip(*(block(owner, turn, length) for owner in everyone)))), "allreduce", turn)
    root = turn % size
    told = block(root, turn, length) if rank == root else numbers([0]) * length
    world.Bcast(told, root)
    expect(told, block(root, turn, length), "broadcast", turn)
    gathered = numbers([0]) * (length * size)
    world.Allgather(mine, gathered)
    expect(gathered, sum((block(owner, turn, length) for owner in everyone), numbers([])), "allgather", turn)
    exchanged = numbers([0]) * size
    world.Alltoall(numbers(turn + rank * size + to for to in everyone), exchanged)
    expect(exchanged, numbers(turn + owner * size + rank for owner in everyone), "alltoall", turn)


def fenced(window, memory, turn, length):
    """Each puts a block into its right neighbour's memory, and gets what its left one's has by then."""
    # What is sent must be there until the access is over.
    mine = block(rank, turn, length)
    window.Fence()
    window.Put(mine, (rank + 1) % size)
    window.Fence()
    expect(memory[:length], block((rank - 1) % size, turn, length), "put", turn)
    found = numbers([0]) * length
    window.Get(found, (rank - 1) % size)
    window.Fence()
    expect(found, block((rank - 2) % size, turn, length), "get", turn)


def locked(window, turn):
    """All add to one number in rank 0's memory; of those who fetch it while they add, no two see the same."""
    seen, one, mine = numbers([0]), numbers([1]), numbers([rank])
    window.Lock(0, MPI.LOCK_SHARED)
    window.Fetch_and_op(one, seen, 0, 0, MPI.SUM)
    window.Accumulate(mine, 0, 1, MPI.SUM)
    window.Unlock(0)
    world.Barrier()
    expect(sorted(world.allgather(seen[0])), list(range(turn * size, (turn + 1) * size)), "fetched", turn)
    sums = numbers([0, 0])
    window.Lock(0, MPI.LOCK_EXCLUSIVE)
    window.Get(sums, 0)
    window.Unlock(0)
    expect(sums, numbers([(turn + 1) * size, (turn + 1) * sum(everyone)]), "accumulated", turn)
    world.Barrier()


def written(file, turn, length):
    """Each writes its block beside the others', and reads its right neighbour's."""
    width = length * 8
    file.Write_at_all(rank * width, block(rank, turn, length))
    file.Sync()
    world.Barrier()
    file.Sync()
    neighbour = (rank + 1) % size
    found = numbers([0]) * length
    file.Read_at_all(neighbour * width, found)
    expect(found, block(neighbour, turn, length), "file", turn)
    world.Barrier()


memory, sums = numbers([0]) * max(LENGTHS), numbers([0, 0])
exposed, counted = MPI.Win.Create(memory, 8, comm=world), MPI.Win.Create(sums, 8, comm=world)
file = MPI.File.Open(world, "shared", MPI.MODE_CREATE | MPI.MODE_RDWR)
turn = 0
while not world.bcast(os.path.exists("enough")):
    length = LENGTHS[turn % len(LENGTHS)]
    collectives(turn, length)
    fenced(exposed, memory, turn, length)
    locked(counted, turn)
    written(file, turn, length)
    turn += 1
    if rank == 0:
        print("turn", turn, flush=True)
file.Close()
counted.Free()
exposed.Free()
if rank == 0:
    print(f"{size} ranks agree after {turn} turns")
