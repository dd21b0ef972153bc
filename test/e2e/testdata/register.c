// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// register registers 10 MB with an HCA, and tries again until it can. It says each result once, with its process ID, in a file:
// "17 refused: Cannot allocate memory", "17 registered".

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t size = 10 * 1000 * 1000;

static struct ibv_pd *open_hca(const char *name)
{
	int n;
	struct ibv_device **devices = ibv_get_device_list(&n);

	for (int i = 0; i < n; i++) {
		if (strcmp(ibv_get_device_name(devices[i]), name))
			continue;
		struct ibv_context *context = ibv_open_device(devices[i]);

		if (context)
			return ibv_alloc_pd(context);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	FILE *out = fopen(argv[2], "w");
	struct ibv_pd *pd = open_hca(argv[1]);
	void *memory = malloc(size);

	if (!out || !pd || !memory) {
		perror(argv[1]);
		return 1;
	}
	setvbuf(out, NULL, _IOLBF, 0);
	for (int said = 0;; usleep(20000)) {
		if (ibv_reg_mr(pd, memory, size, IBV_ACCESS_LOCAL_WRITE))
			break;
		if (errno != said)
			fprintf(out, "%d refused: %s\n", getpid(), strerror(errno));
		said = errno;
	}
	fprintf(out, "%d registered\n", getpid());
	for (;;)
		pause();
}
