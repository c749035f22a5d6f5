/*
 * A forked child keeps no socket by which its parent reaches others: such a child would keep the parent from being moved, and
 * the others from hearing that it has ended.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7182

static struct sockaddr_in at = {.sin_family = AF_INET};

static int sockets(void)
{
	int count = 0;
	struct dirent *entry;
	DIR *folder = opendir("/proc/self/fd");
	CHECK(folder);
	while ((entry = readdir(folder))) {
		char what[16];
		ssize_t length = readlinkat(dirfd(folder), entry->d_name, what, sizeof(what));
		count += length > 7 && !memcmp(what, "socket:", 7);
	}
	CHECK(!closedir(folder));
	return count;
}

static void expect_end(pid_t child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* A neighbour: it sends back its input, until the connection ends. */
static void echo(int bound[2])
{
	int listening = rsocket(AF_INET, SOCK_STREAM, 0), fd;
	char byte;
	CHECK(!rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 1));
	CHECK(write(bound[1], "x", 1) == 1);
	fd = raccept(listening, NULL, NULL);
	CHECK(fd >= 0);
	while (rrecv(fd, &byte, 1, 0) == 1)
		CHECK(rsend(fd, &byte, 1, 0) == 1);
	exit(0);
}

static void expect_echo(int fd)
{
	char byte = 'a';
	CHECK(rsend(fd, &byte, 1, 0) == 1 && rrecv(fd, &byte, 1, 0) == 1 && byte == 'a');
}

int main(void)
{
	int before = sockets(), bound[2], fd;
	char byte;
	pid_t neighbour, child;
	at.sin_port = htons(PORT);
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(!pipe(bound));
	neighbour = fork();
	if (neighbour == 0)
		echo(bound);
	CHECK(read(bound[0], &byte, 1) == 1);
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&at, sizeof(at)));
	expect_echo(fd);
	CHECK(sockets() > before);
	child = fork();
	if (child == 0) {
		CHECK(sockets() == before);
		_exit(0);
	}
	expect_end(child);
	expect_echo(fd);
	CHECK(!rclose(fd));
	expect_end(neighbour);
	return 0;
}
