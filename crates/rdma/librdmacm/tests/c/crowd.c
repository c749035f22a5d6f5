/* Rounds of many connections that say little take little memory, also after the first; and a limit of addresses refuses
 * connections without room, and ends no other. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7196
#define SOCKETS 100
#define ROUNDS 3
/* Of a whole connection's buffers, which are 2 MiB. */
#define LITTLE (256 << 10)
#define MOST 100000

static struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = PORT, .sin_addr.s_addr = INADDR_LOOPBACK};

/* Bytes of the process: all addresses, or the resident ones. */
static unsigned long bytes(int resident)
{
	unsigned long all, some;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file && fscanf(file, "%lu %lu", &all, &some) == 2 && !fclose(file));
	return (resident ? some : all) * 4096;
}

static void says(int fd)
{
	char byte = 'b';
	CHECK(rsend(fd, &byte, 1, 0) == 1);
}

static void hears(int fd)
{
	char byte;
	CHECK(rrecv(fd, &byte, 1, 0) == 1);
}

static int connects(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&address, sizeof(address)));
	return fd;
}

static void take_little_memory(int (*get)(void), void (*first)(int), void (*second)(int))
{
	int fds[SOCKETS];
	unsigned long before = bytes(1);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < SOCKETS; i++)
			fds[i] = get();
		for (int i = 0; i < SOCKETS; i++) {
			first(fds[i]);
			second(fds[i]);
		}
		CHECK(bytes(1) < before + SOCKETS * LITTLE);
		for (int i = 0; i < SOCKETS; i++)
			CHECK(!rclose(fds[i]));
	}
}

static int listening;

static int accepts(void)
{
	int fd = raccept(listening, NULL, NULL);
	CHECK(fd >= 0);
	return fd;
}

static void set_limit(rlim_t most)
{
	CHECK(!setrlimit(RLIMIT_AS, &(struct rlimit){most, RLIM_INFINITY}));
}

static void identifiers_end_with_the_memory(void)
{
	static struct rdma_cm_id *ids[MOST];
	struct rdma_event_channel *channel = rdma_create_event_channel();
	int count = 0;
	CHECK(channel);
	set_limit(bytes(0) + (2 << 20));
	while (count < MOST && !rdma_create_id(channel, &ids[count], NULL, RDMA_PS_TCP))
		count++;
	CHECK(count < MOST && errno == ENOMEM);
	set_limit(RLIM_INFINITY);
	while (count > 0)
		CHECK(!rdma_destroy_id(ids[--count]));
	rdma_destroy_event_channel(channel);
}

static void sockets_end_with_the_memory(void)
{
	int fds[SOCKETS], count = 0, fd;
	set_limit(bytes(0) + (20 << 20));
	for (;;) {
		fd = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(fd >= 0 || errno == ENOMEM);
		if (fd < 0 || rconnect(fd, (struct sockaddr *)&address, sizeof(address)))
			break;
		CHECK(count < SOCKETS - 1);
		fds[count++] = fd;
	}
	CHECK(count > 2 && (fd < 0 || (errno == ENOMEM && !rclose(fd))));
	set_limit(RLIM_INFINITY);
	while (count > 0) {
		says(fds[--count]);
		CHECK(!rclose(fds[count]));
	}
}

int main(void)
{
	int status;
	pid_t child;
	address.sin_port = htons(PORT);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	alarm(50);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		/* Until the parent listens. */
		usleep(200000);
		take_little_memory(connects, says, hears);
		sockets_end_with_the_memory();
		return 0;
	}
	listening = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rbind(listening, (struct sockaddr *)&address, sizeof(address)) && !rlisten(listening, SOCKETS));
	take_little_memory(accepts, hears, says);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	identifiers_end_with_the_memory();
	CHECK(!rclose(listening));
	return 0;
}
