/* Memory that is mapped for the other side of a socket, taken back, and mapped again. */
#include <arpa/inet.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

#define PORT 7191
/* More than one side remembers of the other. */
#define TIMES 1500

static int near, far;

/* The far side has heard of all that was mapped. */
static void passes(void)
{
	char byte;
	CHECK(rsend(near, "m", 1, 0) == 1 && rrecv(far, &byte, 1, 0) == 1);
}

/* Written data has arrived. */
static void arrives(void)
{
	char byte;
	CHECK(rsend(far, "w", 1, 0) == 1 && rrecv(near, &byte, 1, 0) == 1);
}

static void maps(char *at, size_t length, off_t offset)
{
	CHECK(riomap(near, at, length, PROT_WRITE, 0, offset) == offset);
}

static int has(const char *memory, size_t length, char byte)
{
	for (size_t i = 0; i < length; i++)
		if (memory[i] != byte)
			return 0;
	return 1;
}

int main(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listening = rsocket(AF_INET, SOCK_STREAM, 0);
	static char first[100], second[100], sent[200];
	alarm(50);
	CHECK(!rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 1));
	near = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rconnect(near, (struct sockaddr *)&at, sizeof(at)));
	far = raccept(listening, NULL, NULL);
	CHECK(far >= 0);
	memset(sent, 1, sizeof(sent));

	maps(first, sizeof(first), 0);
	CHECK(!riounmap(near, first, sizeof(first)));
	CHECK(riounmap(near, first, sizeof(first)) == -1 && errno == EINVAL);
	maps(second, sizeof(second), 50);
	passes();
	CHECK(riowrite(far, sent, 10, 10, 0) == (size_t)-1 && errno == EINVAL);
	CHECK(riowrite(far, sent, 60, 60, 0) == 60);
	arrives();
	CHECK(has(first, sizeof(first), 0) && has(second, 10, 0) && has(second + 10, 60, 1) && has(second + 70, 30, 0));
	/* No more is mapped. */
	CHECK(riowrite(far, sent, 200, 50, 0) == 100);
	arrives();
	CHECK(has(second, sizeof(second), 1));

	/* The newer mapping at the same place stays. */
	maps(first, sizeof(first), 50);
	CHECK(!riounmap(near, second, sizeof(second)));
	passes();
	CHECK(riowrite(far, sent, 100, 50, 0) == 100);
	arrives();
	CHECK(has(first, sizeof(first), 1));
	/* And the mapping that it has replaced goes with it. */
	maps(second, sizeof(second), 50);
	CHECK(!riounmap(near, second, sizeof(second)));
	passes();
	CHECK(riowrite(far, sent, 10, 50, 0) == (size_t)-1 && errno == EINVAL);
	CHECK(!riounmap(near, first, sizeof(first)));

	for (int i = 0; i < TIMES; i++) {
		maps(first, sizeof(first), 1000 + i);
		CHECK(!riounmap(near, first, sizeof(first)));
		passes();
	}
	maps(second, sizeof(second), 0);
	passes();
	CHECK(riowrite(far, sent, 100, 0, 0) == 100);
	CHECK(!rclose(near) && !rclose(far) && !rclose(listening));
	return 0;
}
