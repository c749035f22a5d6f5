/* A process may exit in a signal handler where it waits, and its atexit functions may fork. */
#include <poll.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define CHILDREN 20

static void ends(int signal)
{
	(void)signal;
	exit(0);
}

static void forks(void)
{
	pid_t child = fork();
	int status;
	if (child == 0)
		_exit(0);
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
		_exit(1);
}

static void waits_until_it_ends(int ready)
{
	struct pollfd entry = {.fd = rsocket(AF_INET, SOCK_STREAM, 0), .events = POLLIN};
	alarm(30);
	CHECK(entry.fd >= 0 && !atexit(forks));
	/* Data that is kept for a thread that has forked once is gone when the last functions run. */
	forks();
	CHECK(signal(SIGTERM, ends) != SIG_ERR && write(ready, "r", 1) == 1);
	rpoll(&entry, 1, -1);
}

int main(void)
{
	alarm(30);
	for (int number = 0; number < CHILDREN; number++) {
		int ends[2], status;
		char byte;
		pid_t child;
		CHECK(!pipe(ends));
		child = fork();
		CHECK(child >= 0);
		if (child == 0)
			waits_until_it_ends(ends[1]);
		CHECK(read(ends[0], &byte, 1) == 1);
		/* Until it sleeps. */
		usleep(20000);
		CHECK(!kill(child, SIGTERM) && waitpid(child, &status, 0) == child && status == 0);
		CHECK(!close(ends[0]) && !close(ends[1]));
	}
	return 0;
}
