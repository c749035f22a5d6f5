/* A forked child has no connections: what it sends on an inherited socket is refused, not lost, and the parent goes on. */
#include <arpa/inet.h>
#include <rdma/rsocket.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7180

static struct sockaddr_in address(void)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void expect_end(pid_t child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void send_in_child(int fd)
{
	pid_t child = fork();
	if (child == 0) {
		for (int i = 0; i < 2; i++)
			CHECK(rsend(fd, "x", 1, 0) == -1 && errno == ECONNRESET);
		_exit(0);
	}
	expect_end(child);
	child = fork();
	if (child == 0) {
		CHECK(riowrite(fd, "x", 1, 0, 0) == (size_t)-1 && errno == ECONNRESET);
		_exit(0);
	}
	expect_end(child);
}

static void client(void)
{
	struct sockaddr_in to = address();
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	char mapped;
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&to, sizeof(to)));
	/* The other side has memory to be written to. */
	CHECK(rrecv(fd, &mapped, 1, 0) == 1 && rsend(fd, "a", 1, 0) == 1);
	send_in_child(fd);
	CHECK(rsend(fd, "b", 1, 0) == 1 && !rclose(fd));
}

int main(void)
{
	struct sockaddr_in at = address();
	int fd, listening = rsocket(AF_INET, SOCK_STREAM, 0);
	char memory[16] = "", got[16];
	pid_t child;
	CHECK(listening >= 0 && !rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 1));
	child = fork();
	if (child == 0) {
		client();
		_exit(0);
	}
	fd = raccept(listening, NULL, NULL);
	CHECK(fd >= 0 && riomap(fd, memory, sizeof(memory), PROT_WRITE, 0, 0) == 0 && rsend(fd, "m", 1, 0) == 1);
	CHECK(rrecv(fd, got, sizeof(got), MSG_WAITALL) == 2 && got[0] == 'a' && got[1] == 'b');
	CHECK(memory[0] == 0 && !rclose(fd) && !rclose(listening));
	expect_end(child);
	return 0;
}
