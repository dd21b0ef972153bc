/* Copyright The rdma-spec Authors. */
/* SPDX-License-Identifier: Apache-2.0 */

/* The sandbox' process: holds the pod's namespaces, reaps what the pod leaves
 * behind, ends on the signals that end a pod. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { _exit(signal == SIGTERM ? 0 : 128 + signal); }

static void reap(int signal)
{
	(void)signal;
	while (waitpid(-1, 0, WNOHANG) > 0)
		;
}

int main(void)
{
	signal(SIGINT, end);
	signal(SIGTERM, end);
	signal(SIGCHLD, reap);
	for (;;)
		pause();
}
