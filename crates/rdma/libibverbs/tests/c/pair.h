/* Two connected RC QPs of one process, for tests. Any failure ends the program with its line. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                        \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* The connection data of QPs. */
static uint8_t read_depth = 4, retries = 7, rnr_retries = 7;

struct pair {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq;
	struct ibv_cq *recv_cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp[2];
	struct ibv_mr *mr;
	char memory[8192];
};

static struct ibv_context *open_first(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 1 && list[0] && !list[1]);
	CHECK(!strcmp(ibv_get_device_name(list[0]), "transhume0"));
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static void connect_qp(struct ibv_qp *qp, uint32_t remote)
{
	struct ibv_port_attr port;
	CHECK(!ibv_query_port(qp->context, 1, &port));
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = remote,
				    .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
				    .ah_attr = {.dlid = port.lid, .port_num = 1}};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = retries, .rnr_retry = rnr_retries,
				    .max_rd_atomic = read_depth};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	CHECK(qp->state == IBV_QPS_RTS);
}

static struct ibv_qp *create_qp(struct pair *pair, int extended)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = pair->send_cq, .recv_cq = pair->recv_cq, .srq = pair->srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64},
		.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pair->pd};
	if (extended) {
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = 0x3ff;
	}
	struct ibv_qp *qp = ibv_create_qp_ex(pair->context, &init);
	CHECK(qp && init.cap.max_send_wr >= 16 && init.cap.max_inline_data >= 64);
	CHECK(!ibv_qp_to_qp_ex(qp) == !extended);
	return qp;
}

static void make_pair(struct pair *pair, int extended, int with_srq)
{
	memset(pair, 0, sizeof(*pair));
	pair->context = open_first();
	pair->pd = ibv_alloc_pd(pair->context);
	CHECK(pair->pd);
	pair->channel = ibv_create_comp_channel(pair->context);
	CHECK(pair->channel);
	pair->send_cq = ibv_create_cq(pair->context, 64, NULL, NULL, 0);
	pair->recv_cq = ibv_create_cq(pair->context, 64, pair, pair->channel, 0);
	CHECK(pair->send_cq && pair->recv_cq && pair->recv_cq->cqe >= 64);
	if (with_srq) {
		struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 2}};
		pair->srq = ibv_create_srq(pair->pd, &init);
		CHECK(pair->srq && init.attr.max_wr >= 16);
	}
	pair->mr = ibv_reg_mr(pair->pd, pair->memory, sizeof(pair->memory), ACCESS);
	CHECK(pair->mr);
	for (int i = 0; i < 2; i++)
		pair->qp[i] = create_qp(pair, extended);
	for (int i = 0; i < 2; i++)
		connect_qp(pair->qp[i], pair->qp[1 - i]->qp_num);
}

static void destroy_pair(struct pair *pair)
{
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(pair->qp[i]));
	CHECK(!ibv_dereg_mr(pair->mr));
	if (pair->srq)
		CHECK(!ibv_destroy_srq(pair->srq));
	CHECK(ibv_destroy_comp_channel(pair->channel) == EBUSY);
	CHECK(!ibv_destroy_cq(pair->send_cq));
	CHECK(!ibv_destroy_cq(pair->recv_cq));
	CHECK(!ibv_destroy_comp_channel(pair->channel));
	CHECK(!ibv_dealloc_pd(pair->pd));
	CHECK(!ibv_close_device(pair->context));
}

static struct ibv_sge part(struct pair *pair, size_t offset, uint32_t length)
{
	return (struct ibv_sge){(uintptr_t)pair->memory + offset, length, pair->mr->lkey};
}

static int post_send(struct pair *pair, int from, enum ibv_wr_opcode opcode, unsigned flags, struct ibv_sge sge, uint64_t to)
{
	struct ibv_send_wr wr = {.wr_id = to + 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags,
				 .imm_data = 0x12345678,
				 .wr.rdma = {(uintptr_t)pair->memory + to, pair->mr->rkey}}, *bad = NULL;
	int result = ibv_post_send(pair->qp[from], &wr, &bad);
	CHECK(!result || bad == &wr);
	return result;
}

static void post_recv(struct pair *pair, int to, uint64_t id, struct ibv_sge sge)
{
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!(pair->srq ? ibv_post_srq_recv(pair->srq, &wr, &bad) : ibv_post_recv(pair->qp[to], &wr, &bad)));
}

/* The next completion; gives up after some seconds. */
static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	for (long i = 0; i < 50000000; i++) {
		int found = ibv_poll_cq(cq, 1, &wc);
		CHECK(found >= 0);
		if (found)
			return wc;
	}
	CHECK(!"a completion");
	return wc;
}
