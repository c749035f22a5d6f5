/* A process may fork while another of its threads initialises the library: the child initialises again, and the thread goes on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <semaphore.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static sem_t begins, has_forked;
static bool is_watched;

static int create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument)
{
	int (*of_the_c_library)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
	return of_the_c_library(thread, attr, start, argument);
}

/* In the place of the C library's: initialisation starts a thread. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument)
{
	if (is_watched) {
		is_watched = false;
		CHECK(!sem_post(&begins));
		while (sem_wait(&has_forked))
			CHECK(errno == EINTR);
	}
	return create(thread, attr, start, argument);
}

static void *begin(void *unused)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) && !rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	return unused;
}

static void is_attached(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 1);
	ibv_free_device_list(list);
}

static pid_t child_that_begins(void)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child > 0)
		return child;
	alarm(20);
	begin(NULL);
	_exit(0);
}

static void expect_end(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
	pthread_t thread;
	pid_t child;
	alarm(50);
	CHECK(!sem_init(&begins, 0, 0) && !sem_init(&has_forked, 0, 0));
	is_attached();
	is_watched = true;
	CHECK(!create(&thread, NULL, begin, NULL) && !sem_wait(&begins));
	child = child_that_begins();
	CHECK(!sem_post(&has_forked) && !pthread_join(thread, NULL));
	expect_end(child);
	/* The thread's operation is not taken for the next one's. */
	expect_end(child_that_begins());
	return 0;
}
