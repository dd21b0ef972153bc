// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspectest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// DefaultCapabilities are the capabilities of a container if its author does not set capabilities.
var DefaultCapabilities = strings.Fields("CAP_CHOWN CAP_DAC_OVERRIDE CAP_FSETID CAP_FOWNER CAP_MKNOD CAP_NET_RAW " +
	"CAP_SETGID CAP_SETUID " +
	"CAP_SETFCAP CAP_SETPCAP CAP_NET_BIND_SERVICE CAP_SYS_CHROOT CAP_KILL CAP_AUDIT_WRITE")

// TrainingSpec returns the spec of a training job's container, in the form that containerd's CRI plugin writes. The
// spec is about 20 KB of JSON. The spec contains environment variables for a few dozen services, the mounts of the
// kubelet and the job, the devices of eight HCAs, and a seccomp filter. Each level contains members that the Go types
// lack, and numbers that do not fit into a float64.
func TrainingSpec() []byte {
	text, err := json.Marshal(trainingSpec())
	if err != nil {
		panic(err)
	}
	for _, level := range []string{`{"ociVersion"`, `{"terminal"`, `{"bounding"`, `{"resources"`} {
		unknown := `{"future":{"limit":18446744073709551615,"share":1.50e3,"text":"<&> \u00e9"},`
		text = bytes.Replace(text, []byte(level), append([]byte(unknown), level[1:]...), 1)
	}
	return text
}

func trainingSpec() *specs.Spec {
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: "train-0",
		Root:     &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Terminal: true,
			User:     specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{1000, 44}},
			Args: []string{"torchrun", "--nnodes=64", "--nproc-per-node=8", "--rdzv-backend=c10d", "train.py",
				"--config", "/config/train.yaml"},
			Env:             environment(),
			Cwd:             "/workspace",
			NoNewPrivileges: true,
			OOMScoreAdj:     ptr(978),
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Hard: 1048576, Soft: 1048576},
				{Type: "RLIMIT_MEMLOCK", Hard: math.MaxUint64, Soft: math.MaxUint64},
			},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: DefaultCapabilities, Effective: DefaultCapabilities, Permitted: DefaultCapabilities,
			},
		},
		Mounts: mounts(),
		Linux: &specs.Linux{
			Devices: devices(),
			Resources: &specs.LinuxResources{
				Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
				Memory:  &specs.LinuxMemory{Limit: ptr[int64](1 << 39), Swap: ptr[int64](1 << 39)},
				CPU: &specs.LinuxCPU{Shares: ptr[uint64](65536), Quota: ptr[int64](6400000),
					Period: ptr[uint64](100000), Cpus: "0-63"},
			},
			CgroupsPath: "kubepods-burstable-pod0c1f1d9e_7a52_4d0c_9f55_3f1f3c9f2a11.slice:cri-containerd:" +
				strings.Repeat("ab12", 16),
			Namespaces: []specs.LinuxNamespace{
				{Type: "pid"}, {Type: "ipc", Path: "/proc/4711/ns/ipc"}, {Type: "uts", Path: "/proc/4711/ns/uts"},
				{Type: "mount"}, {Type: "network", Path: "/proc/4711/ns/net"}, {Type: "cgroup"},
			},
			Seccomp: seccomp(),
			MaskedPaths: strings.Fields("/proc/acpi /proc/asound /proc/kcore /proc/keys /proc/latency_stats " +
				"/proc/timer_list /sys/firmware"),
			ReadonlyPaths: strings.Fields("/proc/bus /proc/fs /proc/irq /proc/sys /proc/sysrq-trigger"),
		},
		Annotations: map[string]string{
			"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "train",
			"io.kubernetes.cri.sandbox-id": strings.Repeat("cd34", 16), "io.kubernetes.cri.sandbox-namespace": "ml-team",
			"io.kubernetes.cri.image-name": "registry.example/train@sha256:" + strings.Repeat("0f", 32),
		},
	}
}

func environment() []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOSTNAME=train-0",
		"NCCL_IB_HCA=mlx5_0,mlx5_1", "NCCL_DEBUG=INFO"}
	for service := range 40 {
		name := fmt.Sprintf("ML_SERVICE_%d", service)
		address := fmt.Sprintf("10.96.%d.17", service)
		env = append(env,
			name+"_SERVICE_HOST="+address, name+"_SERVICE_PORT=8443", name+"_PORT=tcp://"+address+":8443",
			name+"_PORT_8443_TCP=tcp://"+address+":8443", name+"_PORT_8443_TCP_PROTO=tcp", name+"_PORT_8443_TCP_ADDR="+address)
	}
	return env
}

func mounts() []specs.Mount {
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime",
			"mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance",
			"ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec",
			"nodev", "relatime", "ro"}},
	}
	for i, destination := range strings.Fields("/dev/shm /etc/hosts /etc/hostname /etc/resolv.conf /dev/termination-log " +
		"/config /data /checkpoints " +
		"/var/run/secrets/kubernetes.io/serviceaccount /etc/ssh/keys /scratch /models /opt/hpcx /etc/nccl.conf /workspace " +
		"/tmp") {
		mounts = append(mounts, specs.Mount{
			Destination: destination, Type: "bind", Options: []string{"rbind", "rprivate", "rw"},
			Source: fmt.Sprintf("/var/lib/kubelet/pods/0c1f1d9e-7a52-4d0c-9f55-3f1f3c9f2a11/volumes/kubernetes.io~csi/volume-%d/mount", i),
		})
	}
	return mounts
}

func devices() []specs.LinuxDevice {
	devices := []specs.LinuxDevice{{Path: "/dev/infiniband/rdma_cm", Type: "c", Major: 10, Minor: 122,
		FileMode: ptr[fs.FileMode](0o666)}}
	for n := range int64(8) {
		devices = append(devices, specs.LinuxDevice{
			Path: fmt.Sprintf("/dev/infiniband/uverbs%d", n), Type: "c", Major: 231, Minor: 192 + n,
			FileMode: ptr[fs.FileMode](0o666), UID: ptr[uint32](0), GID: ptr[uint32](0),
		})
	}
	return devices
}

func seccomp() *specs.LinuxSeccomp {
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno, DefaultErrnoRet: ptr[uint](1),
		Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
		Syscalls: []specs.LinuxSyscall{
			{Names: strings.Fields(syscalls), Action: specs.ActAllow},
			{Names: []string{"personality"}, Action: specs.ActAllow,
				Args: []specs.LinuxSeccompArg{{Index: 0, Value: math.MaxUint32, Op: specs.OpEqualTo}}},
			{Names: []string{"clone"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: 2114060288,
				Op: specs.OpMaskedEqual}}},
		},
	}
}

// syscalls are system calls that every filter allows. The list is long enough for a filter of typical size.
const syscalls = `accept accept4 access alarm bind brk capget capset chdir chmod chown clock_getres clock_gettime clock_nanosleep close
close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd
eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchown fchownat fcntl fdatasync
fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futimesat get_robust_list getcpu getcwd
getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid
getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch inotify_init
inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_setup io_submit ioctl ioprio_get ioprio_set kill lchown lgetxattr link
linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat madvise membarrier memfd_create mincore mkdir mkdirat mknod mknodat
mlock mlock2 mlockall mmap mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap msgctl msgget msgrcv
msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 poll ppoll
prctl pread64 preadv preadv2 prlimit64 pselect6 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg
recvmsg remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask
rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait sched_getaffinity sched_getparam sched_getscheduler sched_setaffinity
sched_setscheduler sched_yield select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto set_robust_list set_tid_address
setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid
setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socket socketpair splice stat statfs statx symlink symlinkat
sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write
writev`

func ptr[T any](value T) *T { return &value }
