/* Plain sockets of the C library that librspreload turns into rsockets: both ends know from where the client comes. */
#include <arpa/inet.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define PRELOADED "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"
#define PORT 7182

static const char *const server = "10.9.9.1";

static struct sockaddr_in address(void)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = inet_addr(server)};
}

static void *client(void *seen)
{
	struct sockaddr_in to = address();
	socklen_t length = sizeof(to);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof(to)));
	CHECK(!getsockname(fd, seen, &length) && !close(fd));
	return NULL;
}

int main(int count, char **arguments)
{
	struct sockaddr_in at = address(), own, from;
	socklen_t length = sizeof(from);
	int listening, fd;
	pthread_t thread;
	if (!getenv("LD_PRELOAD")) {
		CHECK(!system("ip address add 10.9.9.1/32 dev lo") && !setenv("LD_PRELOAD", PRELOADED, 1));
		execv("/proc/self/exe", arguments);
		CHECK(!"executed");
	}
	listening = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(listening >= 0 && !bind(listening, (struct sockaddr *)&at, sizeof(at)) && !listen(listening, 1));
	CHECK(!pthread_create(&thread, NULL, client, &own));
	fd = accept(listening, (struct sockaddr *)&from, &length);
	CHECK(fd >= 0 && !pthread_join(thread, NULL));
	CHECK(own.sin_addr.s_addr == inet_addr(server) && from.sin_addr.s_addr == own.sin_addr.s_addr);
	CHECK(from.sin_port == own.sin_port && !close(fd) && !close(listening));
	return 0;
}
