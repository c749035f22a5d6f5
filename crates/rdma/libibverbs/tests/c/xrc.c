/* An extended reliable connection within one process: an initiator, a target and two shared receive queues. */
#include "pair.h"

static struct pair pair;
static struct ibv_xrcd *domain;
static struct ibv_srq *srq[2];
static struct ibv_cq *cq[2];
static struct ibv_qp *sender, *target;

static struct ibv_xrcd *open_domain(int fd, int flags)
{
	struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					  .fd = fd, .oflags = flags};
	return ibv_open_xrcd(pair.context, &attr);
}

static void domains(void)
{
	FILE *file = tmpfile();
	CHECK(file);
	int fd = fileno(file), again = dup(fd);
	CHECK(!open_domain(fd, 0) && errno == EAGAIN);
	struct ibv_xrcd *first = open_domain(fd, O_CREAT), *second = open_domain(again, 0);
	CHECK(first && second && !open_domain(fd, O_CREAT | O_EXCL) && errno == EINVAL);
	CHECK(!ibv_close_xrcd(first) && !ibv_close_xrcd(second));
	CHECK(!open_domain(fd, 0) && errno == EAGAIN);
	fclose(file);
	domain = open_domain(-1, O_CREAT);
	CHECK(domain);
}

static void queues(void)
{
	uint32_t number[2];
	for (int i = 0; i < 2; i++) {
		cq[i] = ibv_create_cq(pair.context, 16, NULL, NULL, 0);
		struct ibv_srq_init_attr_ex attr = {
			.attr = {.max_wr = 16, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = pair.pd, .xrcd = domain, .cq = cq[i],
			.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ};
		srq[i] = ibv_create_srq_ex(pair.context, &attr);
		CHECK(cq[i] && srq[i] && !ibv_get_srq_num(srq[i], &number[i]));
		attr.comp_mask &= ~IBV_SRQ_INIT_ATTR_CQ;
		CHECK(!ibv_create_srq_ex(pair.context, &attr) && errno == EINVAL);
	}
	CHECK(number[0] != number[1]);
}

static void change(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask));
}

static void bring_up(struct ibv_qp *qp, uint32_t remote, int sends)
{
	struct ibv_port_attr port;
	CHECK(!ibv_query_port(pair.context, 1, &port));
	change(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS},
	       IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	change(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = remote,
					.max_dest_rd_atomic = 4, .min_rnr_timer = 12,
					.ah_attr = {.dlid = port.lid, .port_num = 1}},
	       IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	       (sends ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	change(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4},
	       IBV_QP_TIMEOUT | IBV_QP_SQ_PSN |
	       (sends ? IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0));
}

static void connection(void)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = pair.send_cq, .qp_type = IBV_QPT_XRC_SEND, .pd = pair.pd, .send_ops_flags = IBV_QP_EX_WITH_SEND,
		.cap = {.max_send_wr = 16, .max_send_sge = 1, .max_inline_data = 64},
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS};
	sender = ibv_create_qp_ex(pair.context, &init);
	CHECK(sender && ibv_qp_to_qp_ex(sender));
	struct ibv_qp_init_attr_ex other = {.qp_type = IBV_QPT_XRC_RECV, .xrcd = domain, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	target = ibv_create_qp_ex(pair.context, &other);
	CHECK(target && !target->pd);
	bring_up(target, sender->qp_num, 0);
	bring_up(sender, target->qp_num, 1);
}

static void expect(int queue, const char *text)
{
	struct ibv_wc wc = completion(cq[queue]);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.qp_num == target->qp_num);
	CHECK(!strcmp(pair.memory + 1024 * (queue + 1), text));
	CHECK(completion(pair.send_cq).status == IBV_WC_SUCCESS);
}

static void messages(void)
{
	uint32_t number[2];
	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = part(&pair, 1024 * (i + 1), 64);
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;
		CHECK(!ibv_post_srq_recv(srq[i], &wr, &bad) && !ibv_get_srq_num(srq[i], &number[i]));
	}
	struct ibv_sge sge = part(&pair, 0, 16);
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
				 .qp_type.xrc.remote_srqn = number[1]}, *bad;
	strcpy(pair.memory, "to the second");
	CHECK(!ibv_post_send(sender, &wr, &bad));
	expect(1, "to the second");

	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(sender);
	strcpy(pair.memory, "to the first");
	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_xrc_srqn(qp, number[0]);
	ibv_wr_set_sge(qp, pair.mr->lkey, (uintptr_t)pair.memory, 16);
	CHECK(!ibv_wr_complete(qp));
	expect(0, "to the first");
}

static void second_opening(void)
{
	struct ibv_qp_open_attr attr = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
					.qp_num = target->qp_num, .xrcd = domain, .qp_type = IBV_QPT_XRC_RECV};
	struct ibv_qp *again = ibv_open_qp(pair.context, &attr);
	CHECK(again && again != target && again->qp_num == target->qp_num);
	attr.qp_num = sender->qp_num;
	CHECK(!ibv_open_qp(pair.context, &attr) && errno == ENOENT);
	CHECK(!ibv_destroy_qp(target));
	struct ibv_qp_attr found;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(again, &found, IBV_QP_STATE, &init) && found.qp_state == IBV_QPS_RTS);
	CHECK(ibv_close_xrcd(domain) == EBUSY);
	target = again;
}

int main(void)
{
	make_pair(&pair, 0, 0);
	struct ibv_device_attr attr;
	CHECK(!ibv_query_device(pair.context, &attr) && attr.device_cap_flags & IBV_DEVICE_XRC);
	domains();
	queues();
	connection();
	messages();
	second_opening();
	messages();
	CHECK(!ibv_destroy_qp(sender) && !ibv_destroy_qp(target));
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_destroy_cq(cq[i]) == EBUSY);
		CHECK(!ibv_destroy_srq(srq[i]) && !ibv_destroy_cq(cq[i]));
	}
	CHECK(!ibv_close_xrcd(domain));
	destroy_pair(&pair);
	return 0;
}
