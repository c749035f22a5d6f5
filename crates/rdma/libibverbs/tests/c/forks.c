/* A child loses the device, may open it again, and does not disturb its parent. */
#include "pair.h"

static struct pair pair;

static void write_once(void)
{
	CHECK(!post_send(&pair, 0, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, part(&pair, 0, 8), 64));
	CHECK(completion(pair.send_cq).status == IBV_WC_SUCCESS);
}

static int child(void)
{
	struct ibv_wc wc;
	CHECK(post_send(&pair, 0, IBV_WR_RDMA_WRITE, 0, part(&pair, 0, 8), 64) == EIO);
	CHECK(ibv_poll_cq(pair.send_cq, 1, &wc) < 0);
	CHECK(!ibv_alloc_pd(pair.context) && errno == EIO);
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	CHECK(!ibv_query_device(pair.context, &attr) && attr.max_qp && !ibv_query_port(pair.context, 1, &port));
	static struct pair own;
	make_pair(&own, 0, 0);
	CHECK(own.qp[0]->qp_num != pair.qp[0]->qp_num);
	destroy_pair(&own);
	return 0;
}

int main(void)
{
	CHECK(!ibv_fork_init() && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	make_pair(&pair, 0, 0);
	write_once();
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		_exit(child());
	write_once();
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	write_once();
	destroy_pair(&pair);
	return 0;
}
