// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verbs

// Driver is a kernel driver for HCAs, with the name of its libibverbs provider.
type Driver string

// The drivers for which this package can create contexts.
const (
	RXE   Driver = "rxe"     // Soft-RoCE
	SIW   Driver = "siw"     // Soft-iWARP
	MLX4  Driver = "mlx4"    // ConnectX-3 and older
	MLX5  Driver = "mlx5"    // Connect-IB, ConnectX-4 and newer, BlueField
	EFA   Driver = "efa"     // Elastic Fabric Adapter
	IRDMA Driver = "irdma"   // E810 and newer
	BNXT  Driver = "bnxt_re" // NetXtreme-E
)

// Supported reports whether Open can create a context for a driver.
func Supported(d Driver) bool {
	_, found := dialects[d]
	return found
}

// dialect contains a driver's additions to the common commands.
type dialect struct {
	context      []uint32 // follows GET_CONTEXT's input
	contextRoom  int      // bytes behind GET_CONTEXT's response
	pdRoom       int      // bytes behind ALLOC_PD's response
	registration []uint32 // follows REG_MR's input
	mrRoom       int      // bytes behind REG_MR's response
}

// room is the space for responses that can grow. Currently, mlx5_ib_alloc_ucontext_resp has 72 bytes, and
// irdma_alloc_ucontext_resp has 80 bytes. The kernel truncates longer responses.
const room = 128

// dialects are the layouts in the kernel's headers in include/uapi/rdma. All kernels accept the inputs below, which are
// the inputs that libibverbs' providers send.
var dialects = map[Driver]dialect{
	// rdma_user_rxe.h: nothing for these commands.
	RXE: {},
	// siw-abi.h: siw_uresp_alloc_ctx, siw_ureq_reg_mr (stag_key and padding), and siw_uresp_reg_mr, of 8 bytes each.
	SIW: {contextRoom: 8, registration: []uint32{0, 0}, mrRoom: 8},
	// mlx4-abi.h: mlx4_ib_alloc_ucontext_resp, whose version 3 is shorter, and mlx4_ib_alloc_pd_resp.
	MLX4: {contextRoom: 16, pdRoom: 8},
	// mlx5-abi.h: mlx5_ib_alloc_ucontext_req, total_num_bfregs and num_low_latency_bfregs, as libmlx5 sets them by
	// default, and mlx5_ib_alloc_pd_resp.
	MLX5: {context: []uint32{16, 4}, contextRoom: room, pdRoom: 4},
	// efa-abi.h: efa_ibv_alloc_ucontext_cmd, with both capabilities that a device can require, and efa_ibv_alloc_pd_resp.
	EFA: {context: []uint32{3, 0}, contextRoom: room, pdRoom: 8},
	// irdma-abi.h: irdma_alloc_ucontext_req with version 5 and the second format of work requests, which the newest
	// hardware requires; irdma_alloc_pd_resp; irdma_mem_reg_req of type IRDMA_MEMREG_TYPE_MEM.
	IRDMA: {context: []uint32{0, 5, 8, 0}, contextRoom: room, pdRoom: 8, registration: []uint32{0, 0}},
	// bnxt_re-abi.h: bnxt_re_uctx_resp and bnxt_re_pd_resp, which has 16 bytes. The vendor's driver writes more bytes.
	BNXT: {contextRoom: room, pdRoom: 32},
}
