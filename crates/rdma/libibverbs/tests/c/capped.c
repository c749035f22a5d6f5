/* A program that forbids itself descriptors (RLIMIT_NOFILE of 0) once it has all that it needs is idle, and is moved. */
#include <sys/resource.h>

#include "pair.h"

static struct pair pair;

/* Processor time of the process, in microseconds. */
static long used(void)
{
	struct rusage usage;
	CHECK(!getrusage(RUSAGE_SELF, &usage));
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000L + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static void send_once(void)
{
	struct ibv_cq *cq;
	void *context;
	post_recv(&pair, 1, 1, part(&pair, 64, 64));
	CHECK(!ibv_req_notify_cq(pair.recv_cq, 0));
	CHECK(!post_send(&pair, 0, IBV_WR_SEND, IBV_SEND_SIGNALED, part(&pair, 0, 8), 0));
	CHECK(!ibv_get_cq_event(pair.channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
	CHECK(completion(pair.recv_cq).status == IBV_WC_SUCCESS && completion(pair.send_cq).status == IBV_WC_SUCCESS);
}

int main(void)
{
	struct rlimit before;
	char byte;
	long idle;
	alarm(50);
	make_pair(&pair, 0, 0);
	send_once();
	CHECK(!getrlimit(RLIMIT_NOFILE, &before) && !setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, before.rlim_max}));
	send_once();
	idle = used();
	sleep(1);
	CHECK(used() - idle < 200000);
	send_once();
	CHECK(write(STDOUT_FILENO, "\n", 1) == 1 && read(STDIN_FILENO, &byte, 1) == 1);
	CHECK(!setrlimit(RLIMIT_NOFILE, &before));
	send_once();
	destroy_pair(&pair);
	return 0;
}
