/*
 * A child that is forked while another thread takes events or posts does not wait for that thread, which it does not have: calls on
 * inherited objects fail at once, and take nothing from the parent's descriptors.
 */
#include <fcntl.h>
#include <pthread.h>

#include "pair.h"

#define THREADS 2
#define CHILDREN 250

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_cq_ex *polled;
static struct ibv_qp_ex *qp;
static volatile int over;

static int take_cq_event(void)
{
	void *of;
	struct ibv_cq *which;
	return ibv_get_cq_event(channel, &which, &of);
}

static int take_async_event(void)
{
	struct ibv_async_event event;
	return ibv_get_async_event(context, &event);
}

/* Nothing is connected: it is refused. */
static int post(void)
{
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, 0, 0, 0);
	return ibv_wr_complete(qp);
}

static int poll_one(void)
{
	return ibv_start_poll(polled, &(struct ibv_poll_cq_attr){0});
}

static void *works(void *what)
{
	int (*work)(void) = what;
	while (!over)
		CHECK(work());
	return NULL;
}

static void child(void)
{
	/* Far more than it takes. */
	alarm(20);
	CHECK(take_cq_event() == -1 && errno == EIO);
	CHECK(take_async_event() == -1 && errno == EIO);
	CHECK(post() == EIO && poll_one() == EIO);
	ibv_destroy_comp_channel(channel);
	CHECK(!ibv_close_device(context));
	_exit(0);
}

static void fork_beside(int (*what)(void))
{
	pthread_t threads[THREADS];
	over = 0;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, works, what));
	for (int i = 0; i < CHILDREN; i++) {
		int status;
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid)
			child();
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	over = 1;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
}

/* Where the parent would wait. */
static void wait_in_child(void)
{
	pid_t pid = fork();
	int status;
	CHECK(pid >= 0);
	if (!pid) {
		alarm(20);
		CHECK(take_cq_event() == -1 && errno == EIO && take_async_event() == -1 && errno == EIO);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

int main(void)
{
	context = open_first();
	channel = ibv_create_comp_channel(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(channel && pd);
	wait_in_child();
	cq = ibv_create_cq(context, 4, NULL, channel, 0);
	polled = ibv_create_cq_ex(context, &(struct ibv_cq_init_attr_ex){.cqe = 4});
	CHECK(cq && polled);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *made = ibv_create_qp_ex(context, &init);
	CHECK(made);
	qp = ibv_qp_to_qp_ex(made);
	CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK) && !fcntl(context->async_fd, F_SETFL, O_NONBLOCK));
	fork_beside(take_cq_event);
	fork_beside(take_async_event);
	fork_beside(post);
	fork_beside(poll_one);
	CHECK(!ibv_destroy_qp(made) && !ibv_destroy_cq(ibv_cq_ex_to_cq(polled)) && !ibv_destroy_cq(cq));
	CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
