// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hca reads the inventory of a node's RDMA hardware: its HCAs, their ports, and their character devices.
//
// The package reads sysfs and /dev/infiniband. It does not read the policy or the state of containers. Device numbers
// always come from sysfs. The package only compares the numbers with the files in /dev/infiniband. If a file is a
// symbolic link or a block device, or has another number, Device.Problem describes the mismatch, and the device keeps
// its number from sysfs.
//
// The functions that read a node are available only on Linux. The types, and the functions that determine which devices
// a container gets, are available on every operating system. Programs can use these types and functions to evaluate
// manifests on a machine that is not a node.
//
// # Roots
//
// The functions that read a node have a parameter named root. The value "" or "/" means the live node. Any other
// directory is a copy of a node, or a mount of a node's file system, such as /host. The functions never follow a
// symbolic link out of the root, and open only directories and regular files. They cannot read attributes longer than
// 64 KiB, which is the largest page size, or directories with more than 65,536 entries.
//
// To make a copy, use tar to archive sys/class/infiniband*, sys/class/net, sys/class/misc/rdma_cm, sys/class/hfi1_user,
// sys/dev/char, sys/module/ib_core/parameters, and the directories in sys/devices that the links in these directories
// point to. tar relies on the file size that sysfs reports, and pads each attribute with zeros, which this package
// removes. A copy that an unprivileged user makes contains no device nodes. In such a copy, the device numbers still
// come from sysfs, and Device.Missing is true for each device. Instead of device nodes, a copy can contain the text
// file device-table.txt at its root. Each row has the first seven columns of the makedevs(8) format:
//
//	# path                   type mode uid gid major minor
//	/dev/infiniband/uverbs0  c    0666 0   0   231   192
//
// A row of the table applies only if the copy contains a regular file, or no file, at the row's path. On the live node,
// the package never reads the table. The table cannot add a device: a row only describes the device node of a device
// that sysfs lists.
//
// # Slow reads
//
// When a program reads a port's state, the kernel queries the HCA's firmware. The query can take seconds if the HCA is
// faulty. VerbsByNumber and List query no HCA, and Read queries one HCA. Scan queries all HCAs one after another. Use
// Scan in commands, not during the creation of a container. For repeated reads, use a Reader: it reads only the
// requested parts of each HCA, and only one link for most HCAs.
//
// # Problems
//
// Hardware can disappear while the package reads the node, and many nodes have faulty hardware. If an attribute or a
// device cannot be read, HCA.Problems contains a line with the reason. If the HCA is unknown, the line is in
// Inventory.Problems. The rest of the inventory is complete. A function that returns an Inventory returns an error only
// if the root cannot be opened, or if sys/class/infiniband cannot be listed.
package hca
