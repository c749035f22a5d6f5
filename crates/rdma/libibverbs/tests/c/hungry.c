/* Takes every free descriptor, and each that becomes free, while it is moved. Its sends wait until some are free. */
#include <pthread.h>
#include <sys/resource.h>

#include "pair.h"

/* Descriptors. */
#define MOST 64

static struct pair pair;
static int taken[MOST], count, is_full;

static void *take(void *unused)
{
	while (!__atomic_load_n(&is_full, __ATOMIC_RELAXED)) {
		int fd = dup(STDIN_FILENO);
		if (fd >= 0)
			taken[count++] = fd;
	}
	return unused;
}

/* Says so, and waits until it has been moved. */
static void is_moved(void)
{
	char byte;
	CHECK(write(STDOUT_FILENO, "\n", 1) == 1 && read(STDIN_FILENO, &byte, 1) == 1);
}

static void is_moved_without_descriptors(void)
{
	pthread_t thread;
	int fd;
	is_full = 0;
	CHECK(!pthread_create(&thread, NULL, take, NULL));
	is_moved();
	__atomic_store_n(&is_full, 1, __ATOMIC_RELAXED);
	CHECK(!pthread_join(thread, NULL));
	/* The device may close one of its own until then. */
	while ((fd = dup(STDIN_FILENO)) >= 0)
		taken[count++] = fd;
	CHECK(errno == EMFILE);
}

static void give_back(void)
{
	CHECK(count > 3);
	while (count > 0)
		CHECK(!close(taken[--count]));
}

int main(void)
{
	struct ibv_cq *cq;
	void *context;
	alarm(50);
	make_pair(&pair, 0, 0);
	CHECK(!setrlimit(RLIMIT_NOFILE, &(struct rlimit){MOST, MOST}));
	is_moved_without_descriptors();
	give_back();
	is_moved();
	is_moved_without_descriptors();
	CHECK(!ibv_req_notify_cq(pair.recv_cq, 0));
	post_recv(&pair, 1, 1, part(&pair, 64, 64));
	CHECK(!post_send(&pair, 0, IBV_WR_SEND, IBV_SEND_SIGNALED, part(&pair, 0, 8), 0));
	/* Longer than a thread looks for something to do. */
	usleep(200000);
	give_back();
	CHECK(!ibv_get_cq_event(pair.channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
	CHECK(completion(pair.recv_cq).status == IBV_WC_SUCCESS && completion(pair.send_cq).status == IBV_WC_SUCCESS);
	destroy_pair(&pair);
	return 0;
}
