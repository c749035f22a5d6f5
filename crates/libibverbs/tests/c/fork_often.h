/* A handler of a signal that forks, every few milliseconds of the program's own. Behind what defines CHECK. */
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKS 200

static volatile int forks;

/* Children go on with what was interrupted, every other one. */
static int children_return;
static volatile int is_child;

static void fork_again(int signal)
{
	int saved = errno, status;
	pid_t child = fork();
	(void)signal;
	if (child == 0) {
		if (!children_return || forks % 2)
			_exit(0);
		is_child = 1;
		return;
	}
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
