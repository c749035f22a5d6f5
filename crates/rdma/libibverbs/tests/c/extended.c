/* Posting through ibv_wr_*, and polling through ibv_start_poll. */
#include "pair.h"
#include <time.h>

static struct pair pair;

static void poll_one(struct ibv_cq_ex *cq, uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct ibv_poll_cq_attr attr = {};
	int result;
	while ((result = ibv_start_poll(cq, &attr)) == ENOENT)
		;
	CHECK(!result && cq->status == IBV_WC_SUCCESS && cq->wr_id == wr_id && ibv_wc_read_opcode(cq) == opcode);
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	uint64_t since = now.tv_sec * 1000000000ull + now.tv_nsec - ibv_wc_read_completion_ts(cq);
	CHECK(since < 5000000000ull && ibv_wc_read_completion_wallclock_ns(cq) == ibv_wc_read_completion_ts(cq));
	ibv_end_poll(cq);
}

int main(void)
{
	make_pair(&pair, 1, 0);
	struct ibv_cq_init_attr_ex attr = {.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS |
		IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(pair.context, &attr);
	CHECK(cq);
	attr.wc_flags = IBV_WC_EX_WITH_FLOW_TAG;
	CHECK(!ibv_create_cq_ex(pair.context, &attr) && errno == EOPNOTSUPP);
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(pair.qp[i]));
	CHECK(!ibv_destroy_cq(pair.send_cq));
	pair.send_cq = ibv_cq_ex_to_cq(cq);
	for (int i = 0; i < 2; i++)
		pair.qp[i] = create_qp(&pair, 1);
	for (int i = 0; i < 2; i++)
		connect_qp(pair.qp[i], pair.qp[1 - i]->qp_num);

	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair.qp[0]);
	char text[] = "inline", more[] = " data";
	struct ibv_data_buf pieces[] = {{text, 6}, {more, 6}};
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, pair.mr->rkey, (uintptr_t)pair.memory + 512);
	ibv_wr_set_inline_data_list(qp, 2, pieces);
	qp->wr_id = 2;
	ibv_wr_rdma_read(qp, pair.mr->rkey, (uintptr_t)pair.memory + 512);
	ibv_wr_set_sge(qp, pair.mr->lkey, (uintptr_t)pair.memory + 1024, 12);
	memset(text, 'x', sizeof(text));
	CHECK(!ibv_wr_complete(qp));
	poll_one(cq, 1, IBV_WC_RDMA_WRITE);
	poll_one(cq, 2, IBV_WC_RDMA_READ);
	CHECK(!strcmp(pair.memory + 1024, "inline data"));

	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, pair.mr->lkey, (uintptr_t)pair.memory, 8);
	ibv_wr_abort(qp);

	/* All or nothing: the queue holds 16 at least, and not 40000. */
	ibv_wr_start(qp);
	for (int i = 0; i < 40000; i++) {
		ibv_wr_rdma_write(qp, pair.mr->rkey, (uintptr_t)pair.memory);
		ibv_wr_set_sge(qp, pair.mr->lkey, (uintptr_t)pair.memory, 8);
	}
	CHECK(ibv_wr_complete(qp) == ENOMEM);
	/* Nor of one that is refused: it has an element more than the queue takes. */
	struct ibv_sge too_many[5] = {};
	memcpy(pair.memory + 512, "as it was", 10);
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, pair.mr->rkey, (uintptr_t)pair.memory + 512);
	ibv_wr_set_sge(qp, pair.mr->lkey, (uintptr_t)pair.memory, 8);
	ibv_wr_rdma_write(qp, pair.mr->rkey, (uintptr_t)pair.memory);
	ibv_wr_set_sge_list(qp, 5, too_many);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	CHECK(!strcmp(pair.memory + 512, "as it was"));
	struct ibv_poll_cq_attr none = {};
	CHECK(ibv_start_poll(cq, &none) == ENOENT);
	destroy_pair(&pair);
	return 0;
}
