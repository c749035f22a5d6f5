/* Threads that the program cancels: no call but the wait for an event is a place where that happens, as with hardware. */
#include "pair.h"
#include <pthread.h>

#define CANCELS 100

static struct pair pair;

static void sends(void)
{
	post_recv(&pair, 1, 1, part(&pair, 4096, 64));
	CHECK(!post_send(&pair, 0, IBV_WR_SEND, IBV_SEND_SIGNALED, part(&pair, 0, 64), 0));
	CHECK(completion(pair.send_cq).status == IBV_WC_SUCCESS && completion(pair.recv_cq).status == IBV_WC_SUCCESS);
}

static void writes(void)
{
	CHECK(!post_send(&pair, 0, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, part(&pair, 0, 64), 4096));
	CHECK(completion(pair.send_cq).status == IBV_WC_SUCCESS);
}

static void waits(void)
{
	struct ibv_cq *cq;
	void *context;
	CHECK(!ibv_req_notify_cq(pair.recv_cq, 0));
	post_recv(&pair, 1, 1, part(&pair, 4096, 64));
	CHECK(!post_send(&pair, 0, IBV_WR_SEND, 0, part(&pair, 0, 64), 0));
	CHECK(!ibv_get_cq_event(pair.channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
	struct ibv_wc wc[16];
	while (ibv_poll_cq(pair.recv_cq, 16, wc) > 0)
		;
}

static void makes_queues(void)
{
	struct ibv_cq *cq = ibv_create_cq(pair.context, 4, NULL, pair.channel, 0);
	CHECK(cq && !ibv_destroy_cq(cq));
	CHECK(!ibv_destroy_qp(create_qp(&pair, 0)));
}

static void registers(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, pair.memory, 4096, ACCESS);
	CHECK(mr && !ibv_dereg_mr(mr));
}

static void opens(void)
{
	CHECK(!ibv_close_device(open_first()));
}

static void *works(void *work)
{
	for (;;) {
		pthread_testcancel();
		((void (*)(void))work)();
	}
	return NULL;
}

static void is_cancelled(void (*work)(void))
{
	for (int i = 0; i < CANCELS; i++) {
		pthread_t thread;
		void *result;
		CHECK(!pthread_create(&thread, NULL, works, work));
		usleep(100 + rand() % 500);
		CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
	}
}

int main(void)
{
	struct ibv_wc wc[16];
	make_pair(&pair, 0, 0);
	is_cancelled(sends);
	is_cancelled(writes);
	is_cancelled(makes_queues);
	is_cancelled(registers);
	is_cancelled(opens);
	is_cancelled(waits);
	while (ibv_poll_cq(pair.recv_cq, 16, wc) > 0)
		;
	sends();
	destroy_pair(&pair);
	return 0;
}
