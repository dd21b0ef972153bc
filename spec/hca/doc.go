// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hca reads the inventory of a node's RDMA hardware: its HCAs, their ports, and their character devices.
//
// It knows sysfs and /dev/infiniband. It does not know containers or the policy. sysfs is authoritative: a device's
// number is the number in sysfs. The package only compares the file in /dev/infiniband with it. If that file is a link
// or a block device, or has another number, this is a problem of the device, and the device keeps its number from
// sysfs.
//
// The functions that read a node exist only on Linux. The types, and the functions that decide what a container gets,
// exist on every system, for programs that evaluate manifests on a machine that is not a node.
//
// # Roots
//
// The functions that read a node have a parameter root: "" or "/" is the live node. Any other directory is a copy of a
// node, or a mount of one, such as /host. They read nothing outside the root, whatever links it contains, and open only
// directories and regular files. Reads are limited: an attribute to 64 KiB, the largest page size, and a directory to
// 65,536 entries.
//
// To make a copy, use tar for sys/class/infiniband*, sys/class/net, sys/class/misc/rdma_cm, sys/class/hfi1_user,
// sys/dev/char, sys/module/ib_core/parameters, and the directories in sys/devices to which their links lead. (tar
// relies on the file size that sysfs reports, and pads each attribute with zeros, which this package removes.) A copy
// by an unprivileged user contains no device nodes. The numbers still come from sysfs, and Device.Missing is true for
// each device. Instead of the nodes, a copy can contain the text file device-table.txt at its root, with the first
// seven columns of makedevs(8):
//
//	# path                   type mode uid gid major minor
//	/dev/infiniband/uverbs0  c    0666 0   0   231   192
//
// A row of the table applies only if the copy contains no special file at its path. On the live node, the table is
// never read. It cannot add a device: it only describes the node at the path of a device that sysfs lists.
//
// # Slow reads
//
// To read a port's state, the kernel asks the HCA's firmware, which can take seconds if the HCA is faulty.
// VerbsByNumber and List ask no HCA, and Read asks one. Scan asks all HCAs, one after the other: use it in commands,
// not during a container's creation. A Reader is for repeated reads: it reads only the requested parts of each HCA, and
// of most HCAs only a link.
//
// # Problems
//
// Hardware can disappear while the node is read, and on many nodes some of it is faulty. If something cannot be read,
// Problems of the HCA contains a line about it (or Problems of the node, if the HCA is unknown), and the rest of the
// inventory is complete. A function returns an error only if there is no inventory: the root cannot be opened, or the
// class directory cannot be listed.
package hca
