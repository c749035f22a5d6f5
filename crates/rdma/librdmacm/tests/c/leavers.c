/* Clients that leave while they wait to be accepted leave nothing in the listener, which goes as a whole when it is closed. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rsocket.h>
#include <unistd.h>

#include "check.h"
#include "descriptors.h"

#define PORT 7191
#define CLIENTS 6
#define ROUNDS 5

static void listen_to_leavers(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listening = rsocket(AF_INET, SOCK_STREAM, 0), clients[CLIENTS];
	CHECK(listening >= 0 && !rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 1));
	for (int i = 0; i < CLIENTS; i++) {
		clients[i] = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(clients[i] >= 0 && !rfcntl(clients[i], F_SETFL, O_NONBLOCK));
		CHECK(rconnect(clients[i], (struct sockaddr *)&at, sizeof(at)) == -1);
	}
	/* Until all have asked. */
	usleep(200000);
	for (int i = 0; i < CLIENTS; i++)
		CHECK(!rclose(clients[i]));
	CHECK(!rclose(listening));
}

int main(void)
{
	alarm(30);
	listen_to_leavers();
	usleep(200000);
	int before = descriptors();
	for (int round = 0; round < ROUNDS; round++)
		listen_to_leavers();
	usleep(200000);
	CHECK(descriptors() == before);
	return 0;
}
