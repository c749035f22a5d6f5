"""Datagrams to itself, as many as its argument says."""

import sys
from pyverbs.device import Context, get_device_list
from pyverbs.pd import PD
from pyverbs.mr import MR
from pyverbs.cq import CQ
from pyverbs.qp import QP, QPInitAttr, QPCap, QPAttr
from pyverbs.addr import AH, AHAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

QKEY = 0x1234
context = Context(name=get_device_list()[0].name.decode())
lid = context.query_port(1).lid
domain = PD(context)
region = MR(domain, 4096, e.IBV_ACCESS_LOCAL_WRITE)
queue = CQ(context, 10)
caps = QPCap(max_send_wr=4, max_recv_wr=4)
attributes = QPAttr()
attributes.qkey = QKEY
pair = QP(domain, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=queue, rcq=queue, cap=caps), attributes)
send = SendWR(wr_id=2, num_sge=1, sg=[SGE(region.buf + 2048, 9, region.lkey)])
send.set_wr_ud(AH(domain, attr=AHAttr(dlid=lid, port_num=1)), pair.qp_num, QKEY)
count = int(sys.argv[1])
for turn in range(count):
    pair.post_recv(RecvWR(wr_id=1, num_sge=1, sg=[SGE(region.buf, 1024, region.lkey)]))
    text = f"to me {turn % 1000:03}"
    region.write(text, 9, 2048)
    pair.post_send(send)
    found = {}
    while len(found) < 2:
        for completion in queue.poll(2)[1]:
            found[completion.wr_id] = completion
    assert all(completion.status == e.IBV_WC_SUCCESS for completion in found.values()), found
    assert found[1].byte_len == 40 + 9 and found[1].src_qp == pair.qp_num
    assert region.read(9, 40) == text.encode()
print(count, "datagrams went to", hex(pair.qp_num), "and back")
