/* A handler of a signal forks amid a call of the library, whose lock the thread has then. */
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define FORKS 200

static volatile int forks;

static void fork_again(int signal)
{
	int saved = errno, status;
	pid_t child = fork();
	(void)signal;
	if (child == 0)
		_exit(0);
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	forks++;
	errno = saved;
}

/* Far more than it takes; who hangs is ended. */
static void begin_to_fork(void)
{
	struct sigaction action = {.sa_handler = fork_again, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 3000}, {0, 3000}};
	CHECK(!sigaction(SIGVTALRM, &action, NULL));
	CHECK(!setitimer(ITIMER_VIRTUAL, &often, NULL));
	alarm(60);
}

static void end_forking(void)
{
	CHECK(!setitimer(ITIMER_VIRTUAL, &(struct itimerval){0}, NULL));
}

int main(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	char byte;
	CHECK(fd >= 0);
	begin_to_fork();
	while (forks < FORKS)
		CHECK(rrecv(fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == ENOTCONN);
	end_forking();
	CHECK(!rclose(fd));
	return 0;
}
