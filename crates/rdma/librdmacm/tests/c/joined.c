/* Joining a group before creating the queue pair works. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

#define GRH 40

static struct sockaddr_in group = {.sin_family = AF_INET};

static struct rdma_cm_id *resolved(void)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&group, 1000));
	return id;
}

static void make_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_UD, .cap = {4, 4, 1, 1, 0}};
	CHECK(!rdma_create_qp(id, NULL, &attr));
}

int main(void)
{
	static char bytes[GRH + 8], said[8] = "to all";
	struct rdma_cm_id *member, *sender;
	struct ibv_mr *mr, *source;
	struct ibv_wc wc;
	struct rdma_ud_param to;
	struct ibv_sge piece;
	struct ibv_send_wr work = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_recv_wr wanted = {.sg_list = &piece, .num_sge = 1};
	struct ibv_recv_wr *refused;
	alarm(60);
	CHECK(!system("ip address add 10.9.9.1/32 dev lo && ip route add 224.0.0.0/4 dev lo src 10.9.9.1"));
	inet_pton(AF_INET, "239.1.2.3", &group.sin_addr);
	member = resolved();
	CHECK(!rdma_join_multicast(member, (struct sockaddr *)&group, NULL));
	make_queue_pair(member);
	mr = rdma_reg_msgs(member, bytes, sizeof(bytes));
	CHECK(mr);
	piece = (struct ibv_sge){(uintptr_t)bytes, sizeof(bytes), mr->lkey};
	CHECK(!ibv_post_recv(member->qp, &wanted, &refused));
	sender = resolved();
	make_queue_pair(sender);
	CHECK(!rdma_join_multicast(sender, (struct sockaddr *)&group, NULL));
	to = sender->event->param.ud;
	source = rdma_reg_msgs(sender, said, sizeof(said));
	CHECK(source);
	piece = (struct ibv_sge){(uintptr_t)said, sizeof(said), source->lkey};
	work.wr.ud.ah = ibv_create_ah(sender->pd, &to.ah_attr);
	work.wr.ud.remote_qpn = to.qp_num;
	work.wr.ud.remote_qkey = to.qkey;
	CHECK(work.wr.ud.ah && !ibv_post_send(sender->qp, &work, &bad));
	CHECK(rdma_get_recv_comp(member, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!memcmp(bytes + GRH, said, sizeof(said)));
	CHECK(!rdma_leave_multicast(member, (struct sockaddr *)&group));
	CHECK(!ibv_destroy_ah(work.wr.ud.ah) && !rdma_dereg_mr(mr) && !rdma_dereg_mr(source));
	rdma_destroy_qp(member);
	CHECK(!rdma_destroy_id(member));
	CHECK(!rdma_leave_multicast(sender, (struct sockaddr *)&group));
	rdma_destroy_qp(sender);
	CHECK(!rdma_destroy_id(sender));
	return 0;
}
