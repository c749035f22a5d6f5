/* Completion channels: blocking, polling, non-blocking; acknowledgements; events of a CQ that goes. */
#include "pair.h"

static struct pair pair;

static void send_one(unsigned flags)
{
	post_recv(&pair, 1, 1, part(&pair, 64, 64));
	CHECK(!post_send(&pair, 0, IBV_WR_SEND, IBV_SEND_SIGNALED | flags, part(&pair, 0, 8), 0));
	CHECK(completion(pair.send_cq).status == IBV_WC_SUCCESS);
}

static int readable(void)
{
	struct pollfd entry = {.fd = pair.channel->fd, .events = POLLIN};
	return poll(&entry, 1, 0);
}

int main(void)
{
	struct ibv_cq *cq;
	void *context;
	make_pair(&pair, 0, 0);

	CHECK(!ibv_req_notify_cq(pair.recv_cq, 0));
	CHECK(!readable());
	send_one(0);
	CHECK(!ibv_get_cq_event(pair.channel, &cq, &context));
	CHECK(cq == pair.recv_cq && context == &pair);
	ibv_ack_cq_events(cq, 1);
	CHECK(completion(cq).status == IBV_WC_SUCCESS);

	/* Not armed: no event. Non-blocking: -1 and EAGAIN. */
	send_one(0);
	CHECK(!fcntl(pair.channel->fd, F_SETFL, O_NONBLOCK));
	CHECK(!readable() && ibv_get_cq_event(pair.channel, &cq, &context) == -1 && errno == EAGAIN);
	CHECK(completion(pair.recv_cq).status == IBV_WC_SUCCESS);

	/* Solicited only. */
	CHECK(!ibv_req_notify_cq(pair.recv_cq, 1));
	send_one(0);
	CHECK(!readable());
	send_one(IBV_SEND_SOLICITED);
	CHECK(readable());

	/* The event goes with its CQ. */
	struct ibv_cq *other = ibv_create_cq(pair.context, 4, NULL, pair.channel, 0);
	CHECK(other && !ibv_destroy_cq(other));
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(pair.qp[i]));
	CHECK(!ibv_destroy_cq(pair.recv_cq));
	CHECK(!readable() && !ibv_destroy_comp_channel(pair.channel));
	CHECK(ibv_dealloc_pd(pair.pd) == EBUSY);
	/* The remaining objects go with the device. */
	CHECK(!ibv_close_device(pair.context));
	return 0;
}
