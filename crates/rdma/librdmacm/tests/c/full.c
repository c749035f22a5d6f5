/* A program without free descriptors leaves connection requests in the queue, and takes them later. */
#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7178

static struct sockaddr_in address(void)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void ask(void)
{
	struct sockaddr_in to = address();
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), attempts = 0;
	char answer;
	CHECK(fd >= 0);
	/* Until the other side listens. */
	while (rconnect(fd, (struct sockaddr *)&to, sizeof(to))) {
		CHECK(errno == ECONNREFUSED && attempts++ < 1000);
		CHECK(!rclose(fd));
		usleep(10000);
		fd = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(fd >= 0);
	}
	CHECK(rrecv(fd, &answer, 1, 0) == 1 && answer == 'a');
	CHECK(!rclose(fd));
}

/* No more descriptors than so many. */
static void limit(int count)
{
	struct rlimit limit;
	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = count;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
}

int main(void)
{
	struct sockaddr_in at = address();
	struct rlimit before;
	struct pollfd listening = {.events = POLLIN};
	pid_t client = fork();
	int first, fd, next, status;
	CHECK(client >= 0);
	if (client == 0) {
		ask();
		ask();
		return 0;
	}
	listening.fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(listening.fd >= 0 && !rbind(listening.fd, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening.fd, 1));
	/* The way to the other process takes descriptors too. */
	first = raccept(listening.fd, NULL, NULL);
	CHECK(first >= 0);

	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	next = dup(0);
	CHECK(next >= 0 && !close(next));
	/* A socket has two. */
	limit(next);
	CHECK(rsend(first, "a", 1, 0) == 1);
	CHECK(rpoll(&listening, 1, -1) == 1 && listening.revents == POLLIN);
	for (int more = 0; more < 2; more++) {
		limit(next + more);
		CHECK(raccept(listening.fd, NULL, NULL) == -1 && errno == EMFILE);
		CHECK(rpoll(&listening, 1, 0) == 1 && listening.revents == POLLIN);
	}
	CHECK(!setrlimit(RLIMIT_NOFILE, &before));

	fd = raccept(listening.fd, NULL, NULL);
	CHECK(fd >= 0 && rsend(fd, "a", 1, 0) == 1 && !rclose(fd) && !rclose(first) && !rclose(listening.fd));
	CHECK(waitpid(client, &status, 0) == client && status == 0);
	return 0;
}
