// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hca takes the inventory of a node's RDMA hardware: its HCAs, their ports and the character devices that
// belong to them.
//
// It knows sysfs and /dev/infiniband, nothing else: no containers, no policy. sysfs is authoritative. A device's number
// is the one in sysfs, and what lies in /dev/infiniband is only compared with that: a link, a block device or another
// number there shows as a problem of the device and never changes the number.
//
// What reads a node is there on Linux alone. What an HCA is, and what a container gets of it, is there on every system,
// for programs that judge manifests on a machine that is not a node.
//
// # Roots
//
// Every function takes a root: "" or "/" is the live node, any other directory is a copy of one (or a mount of one,
// such as /host). Nothing is read from outside of it, whatever links it holds, and nothing but directories and regular
// files is ever opened. Reads are bounded: an attribute by the 64 KiB of the largest page, a directory by 65,536
// entries.
//
// A copy can be made with tar, of sys/class/infiniband*, sys/class/net, sys/class/misc/rdma_cm, sys/class/hfi1_user,
// sys/dev/char, sys/module/ib_core/parameters and the directories in sys/devices that those lead to. (tar believes the
// size that sysfs claims and fills up each attribute with zeros; they are left out.) One made by an unprivileged user
// has no device nodes. Then the numbers still come from sysfs and each device records that its node is missing
// (Device.Missing). A copy may describe the nodes instead, in a text file called device-table.txt at its top, in the
// first seven columns of makedevs(8):
//
//	# path                   type mode uid gid major minor
//	/dev/infiniband/uverbs0  c    0666 0   0   231   192
//
// The table counts only where the copy has no special file of its own, and is never read on the live node. It cannot
// add a device: it only describes what lay at the path of a device that sysfs names.
//
// # What takes long
//
// Reading the state of a port asks the HCA's firmware, and a sick HCA can take seconds. VerbsByNumber and List ask no
// HCA, Read asks one. Scan is all of them, one after the other: for commands, not for a container's creation. A Reader
// is for who reads again and again: it reads of each HCA the parts that are asked for, and of most only a link.
//
// # What is broken
//
// A node is read while its hardware comes and goes, and some of it is always broken somewhere. Whatever cannot be read
// becomes a line in Problems of the HCA (or of the node, where no HCA can be named) and everything else is still there.
// An error is returned only where there is no inventory at all: the root cannot be opened, or the class directory
// cannot be listed.
package hca
