/* A child that is forked while another thread attaches the process may attach itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/socket.h>

#include "pair.h"

/* In the place of libc's: the node takes its time. */
int connect(int fd, const struct sockaddr *to, socklen_t length)
{
	int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
	usleep(200000);
	return real(fd, to, length);
}

static void *attach(void *unused)
{
	ibv_close_device(open_first());
	return unused;
}

int main(void)
{
	pthread_t thread;
	int status;
	pid_t child;
	alarm(50);
	CHECK(!pthread_create(&thread, NULL, attach, NULL));
	usleep(100000);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		alarm(20);
		attach(NULL);
		_exit(0);
	}
	CHECK(!pthread_join(thread, NULL));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	attach(NULL);
	return 0;
}
