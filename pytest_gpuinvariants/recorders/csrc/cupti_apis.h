/* The calls that are recorded: CUPTI's numbers for them, and where their parameters lie.
 *
 * CUPTI hands over each call's parameters as a structure.  Of every call named here that structure
 * is made of 8-byte slots (a 4-byte member always has one to itself), so a parameter is named by
 * its slot.  Numbers and layouts are part of CUDA's ABI and only ever added to; a test compares
 * them with the headers.  Read by X-macros: define what is needed before including this.
 *
 *   SYNC(domain, id, api, stream)
 *   ALLOC(domain, id, api, size, rows)
 *   LAUNCH(domain, id, api, function, stream, config)  config: the stream is in a structure, in this slot
 *   FILL(domain, id, api, blocking, element, width, height, depth, stream)   slot 0 is the target
 *   COPY(domain, id, api, blocking, to, from, width, height, stream, direction)
 *       direction: the cudaMemcpyKind, where knowing it saves looking at the memory
 *   AREA(domain, id, api, blocking, layout, stream)   slot 0 is a pointer to a structure of this layout
 *   BATCH(domain, id, api, stream)
 *   BATCH_3D(domain, id, api, stream)
 *
 * NONE: no such parameter.  ARRAY: that side is a CUDA array or a symbol, which is device memory.
 */

/* The host waits. */
SYNC(RUNTIME, 126, cudaThreadSynchronize, NONE)
SYNC(RUNTIME, 131, cudaStreamSynchronize, 0)
SYNC(RUNTIME, 137, cudaEventSynchronize, NONE)
SYNC(RUNTIME, 165, cudaDeviceSynchronize, NONE)
SYNC(RUNTIME, 239, cudaStreamSynchronize, 0) /* _ptsz */
SYNC(DRIVER, 17, cuCtxSynchronize, NONE)
SYNC(DRIVER, 121, cuEventSynchronize, NONE)
SYNC(DRIVER, 126, cuStreamSynchronize, 0)
SYNC(DRIVER, 440, cuStreamSynchronize, 0) /* _ptsz */
SYNC(DRIVER, 800, cuCtxSynchronize, NONE) /* _v2 */

/* Memory taken and given back. */
ALLOC(RUNTIME, 20, cudaMalloc, 1, NONE)
ALLOC(RUNTIME, 21, cudaMallocPitch, 2, 3)
ALLOC(RUNTIME, 22, cudaFree, NONE, NONE)
ALLOC(RUNTIME, 23, cudaMallocArray, NONE, NONE)
ALLOC(RUNTIME, 24, cudaFreeArray, NONE, NONE)
ALLOC(RUNTIME, 25, cudaMallocHost, 1, NONE)
ALLOC(RUNTIME, 26, cudaFreeHost, NONE, NONE)
ALLOC(RUNTIME, 27, cudaHostAlloc, 1, NONE)
ALLOC(RUNTIME, 140, cudaMalloc3D, NONE, NONE)
ALLOC(RUNTIME, 141, cudaMalloc3DArray, NONE, NONE)
ALLOC(RUNTIME, 152, cudaHostRegister, 1, NONE)
ALLOC(RUNTIME, 153, cudaHostUnregister, NONE, NONE)
ALLOC(RUNTIME, 192, cudaMallocMipmappedArray, NONE, NONE)
ALLOC(RUNTIME, 194, cudaFreeMipmappedArray, NONE, NONE)
ALLOC(RUNTIME, 206, cudaMallocManaged, 1, NONE)
ALLOC(DRIVER, 38, cuMemFreeHost, NONE, NONE)
ALLOC(DRIVER, 39, cuMemHostAlloc, 1, NONE)
ALLOC(DRIVER, 243, cuMemAlloc, 1, NONE)
ALLOC(DRIVER, 244, cuMemAllocPitch, 2, 3)
ALLOC(DRIVER, 245, cuMemFree, NONE, NONE)
ALLOC(DRIVER, 271, cuMemHostAlloc, 1, NONE) /* _v2 */
ALLOC(DRIVER, 294, cuMemAllocHost, 1, NONE)
ALLOC(DRIVER, 301, cuMemHostRegister, 1, NONE)
ALLOC(DRIVER, 302, cuMemHostUnregister, NONE, NONE)
ALLOC(DRIVER, 371, cuMemAllocManaged, 1, NONE)
ALLOC(DRIVER, 379, cuMemHostRegister, 1, NONE) /* _v2 */

/* Kernel launches.  CUDA 13 compiles the <<<>>> syntax to __cudaLaunchKernel. */
LAUNCH(RUNTIME, 211, cudaLaunchKernel, 0, 6, NONE)
LAUNCH(RUNTIME, 214, cudaLaunchKernel, 0, 6, NONE) /* _ptsz */
LAUNCH(RUNTIME, 269, cudaLaunchCooperativeKernel, 0, 6, NONE)
LAUNCH(RUNTIME, 270, cudaLaunchCooperativeKernel, 0, 6, NONE) /* _ptsz */
LAUNCH(RUNTIME, 430, cudaLaunchKernelExC, 1, 4, 0)
LAUNCH(RUNTIME, 431, cudaLaunchKernelExC, 1, 4, 0) /* _ptsz */
LAUNCH(RUNTIME, 505, cudaLaunchKernel, 0, 6, NONE) /* __cudaLaunchKernel */
LAUNCH(RUNTIME, 506, cudaLaunchKernel, 0, 6, NONE) /* __cudaLaunchKernel_ptsz */
LAUNCH(DRIVER, 307, cuLaunchKernel, 0, 5, NONE)
LAUNCH(DRIVER, 442, cuLaunchKernel, 0, 5, NONE) /* _ptsz */
LAUNCH(DRIVER, 477, cuLaunchCooperativeKernel, 0, 5, NONE)
LAUNCH(DRIVER, 478, cuLaunchCooperativeKernel, 0, 5, NONE) /* _ptsz */
LAUNCH(DRIVER, 652, cuLaunchKernelEx, 1, 4, 0)
LAUNCH(DRIVER, 653, cuLaunchKernelEx, 1, 4, 0) /* _ptsz */

/* Fills. */
FILL(RUNTIME, 49, cudaMemset, 1, 1, 2, NONE, NONE, NONE)
FILL(RUNTIME, 50, cudaMemset2D, 1, 1, 3, 4, NONE, NONE)
FILL(RUNTIME, 51, cudaMemsetAsync, 0, 1, 2, NONE, NONE, 3)
FILL(RUNTIME, 52, cudaMemset2DAsync, 0, 1, 3, 4, NONE, 5)
FILL(RUNTIME, 142, cudaMemset3D, 1, 1, 5, 6, 7, NONE)
FILL(RUNTIME, 143, cudaMemset3DAsync, 0, 1, 5, 6, 7, 8)
FILL(RUNTIME, 233, cudaMemset, 1, 1, 2, NONE, NONE, NONE) /* _ptds, as the next three */
FILL(RUNTIME, 234, cudaMemset2D, 1, 1, 3, 4, NONE, NONE)
FILL(RUNTIME, 235, cudaMemsetAsync, 0, 1, 2, NONE, NONE, 3)
FILL(RUNTIME, 236, cudaMemset2DAsync, 0, 1, 3, 4, NONE, 5)
FILL(RUNTIME, 243, cudaMemset3D, 1, 1, 5, 6, 7, NONE)
FILL(RUNTIME, 244, cudaMemset3DAsync, 0, 1, 5, 6, 7, 8)
FILL(DRIVER, 216, cuMemsetD8Async, 0, 1, 2, NONE, NONE, 3)
FILL(DRIVER, 218, cuMemsetD16Async, 0, 2, 2, NONE, NONE, 3)
FILL(DRIVER, 220, cuMemsetD32Async, 0, 4, 2, NONE, NONE, 3)
FILL(DRIVER, 222, cuMemsetD2D8Async, 0, 1, 3, 4, NONE, 5)
FILL(DRIVER, 224, cuMemsetD2D16Async, 0, 2, 3, 4, NONE, 5)
FILL(DRIVER, 226, cuMemsetD2D32Async, 0, 4, 3, 4, NONE, 5)
FILL(DRIVER, 249, cuMemsetD8, 1, 1, 2, NONE, NONE, NONE)
FILL(DRIVER, 250, cuMemsetD16, 1, 2, 2, NONE, NONE, NONE)
FILL(DRIVER, 251, cuMemsetD32, 1, 4, 2, NONE, NONE, NONE)
FILL(DRIVER, 252, cuMemsetD2D8, 1, 1, 3, 4, NONE, NONE)
FILL(DRIVER, 253, cuMemsetD2D16, 1, 2, 3, 4, NONE, NONE)
FILL(DRIVER, 254, cuMemsetD2D32, 1, 4, 3, 4, NONE, NONE)
FILL(DRIVER, 411, cuMemsetD8, 1, 1, 2, NONE, NONE, NONE) /* _ptds and _ptsz from here on */
FILL(DRIVER, 412, cuMemsetD16, 1, 2, 2, NONE, NONE, NONE)
FILL(DRIVER, 413, cuMemsetD32, 1, 4, 2, NONE, NONE, NONE)
FILL(DRIVER, 414, cuMemsetD2D8, 1, 1, 3, 4, NONE, NONE)
FILL(DRIVER, 415, cuMemsetD2D16, 1, 2, 3, 4, NONE, NONE)
FILL(DRIVER, 416, cuMemsetD2D32, 1, 4, 3, 4, NONE, NONE)
FILL(DRIVER, 428, cuMemsetD8Async, 0, 1, 2, NONE, NONE, 3)
FILL(DRIVER, 429, cuMemsetD16Async, 0, 2, 2, NONE, NONE, 3)
FILL(DRIVER, 430, cuMemsetD32Async, 0, 4, 2, NONE, NONE, 3)
FILL(DRIVER, 431, cuMemsetD2D8Async, 0, 1, 3, 4, NONE, 5)
FILL(DRIVER, 432, cuMemsetD2D16Async, 0, 2, 3, 4, NONE, 5)
FILL(DRIVER, 433, cuMemsetD2D32Async, 0, 4, 3, 4, NONE, 5)

/* Copies, the runtime's.  Those between two arrays are always between devices and left out. */
COPY(RUNTIME, 31, cudaMemcpy, 1, 0, 1, 2, NONE, NONE, NONE)
COPY(RUNTIME, 32, cudaMemcpy2D, 1, 0, 2, 4, 5, NONE, NONE)
COPY(RUNTIME, 33, cudaMemcpyToArray, 1, ARRAY, 3, 4, NONE, NONE, NONE)
COPY(RUNTIME, 34, cudaMemcpy2DToArray, 1, ARRAY, 3, 5, 6, NONE, NONE)
COPY(RUNTIME, 35, cudaMemcpyFromArray, 1, 0, ARRAY, 4, NONE, NONE, NONE)
COPY(RUNTIME, 36, cudaMemcpy2DFromArray, 1, 0, ARRAY, 5, 6, NONE, NONE)
COPY(RUNTIME, 39, cudaMemcpyToSymbol, 1, ARRAY, 1, 2, NONE, NONE, NONE)
COPY(RUNTIME, 40, cudaMemcpyFromSymbol, 1, 0, ARRAY, 2, NONE, NONE, NONE)
COPY(RUNTIME, 41, cudaMemcpyAsync, 0, 0, 1, 2, NONE, 4, 3)
COPY(RUNTIME, 42, cudaMemcpyToArrayAsync, 0, ARRAY, 3, 4, NONE, 6, NONE)
COPY(RUNTIME, 43, cudaMemcpyFromArrayAsync, 0, 0, ARRAY, 4, NONE, 6, NONE)
COPY(RUNTIME, 44, cudaMemcpy2DAsync, 0, 0, 2, 4, 5, 7, NONE)
COPY(RUNTIME, 45, cudaMemcpy2DToArrayAsync, 0, ARRAY, 3, 5, 6, 8, NONE)
COPY(RUNTIME, 46, cudaMemcpy2DFromArrayAsync, 0, 0, ARRAY, 5, 6, 8, NONE)
COPY(RUNTIME, 47, cudaMemcpyToSymbolAsync, 0, ARRAY, 1, 2, NONE, 5, NONE)
COPY(RUNTIME, 48, cudaMemcpyFromSymbolAsync, 0, 0, ARRAY, 2, NONE, 5, NONE)
AREA(RUNTIME, 144, cudaMemcpy3D, 1, RUNTIME_3D, NONE)
AREA(RUNTIME, 145, cudaMemcpy3DAsync, 0, RUNTIME_3D, 1)
COPY(RUNTIME, 160, cudaMemcpyPeer, 1, 0, 2, 4, NONE, NONE, NONE)
COPY(RUNTIME, 161, cudaMemcpyPeerAsync, 0, 0, 2, 4, NONE, 5, NONE)
AREA(RUNTIME, 162, cudaMemcpy3DPeer, 1, RUNTIME_3D_PEER, NONE)
AREA(RUNTIME, 163, cudaMemcpy3DPeerAsync, 0, RUNTIME_3D_PEER, 1)
COPY(RUNTIME, 215, cudaMemcpy, 1, 0, 1, 2, NONE, NONE, NONE) /* _ptds and _ptsz from here on */
COPY(RUNTIME, 216, cudaMemcpy2D, 1, 0, 2, 4, 5, NONE, NONE)
COPY(RUNTIME, 217, cudaMemcpyToArray, 1, ARRAY, 3, 4, NONE, NONE, NONE)
COPY(RUNTIME, 218, cudaMemcpy2DToArray, 1, ARRAY, 3, 5, 6, NONE, NONE)
COPY(RUNTIME, 219, cudaMemcpyFromArray, 1, 0, ARRAY, 4, NONE, NONE, NONE)
COPY(RUNTIME, 220, cudaMemcpy2DFromArray, 1, 0, ARRAY, 5, 6, NONE, NONE)
COPY(RUNTIME, 223, cudaMemcpyToSymbol, 1, ARRAY, 1, 2, NONE, NONE, NONE)
COPY(RUNTIME, 224, cudaMemcpyFromSymbol, 1, 0, ARRAY, 2, NONE, NONE, NONE)
COPY(RUNTIME, 225, cudaMemcpyAsync, 0, 0, 1, 2, NONE, 4, 3)
COPY(RUNTIME, 226, cudaMemcpyToArrayAsync, 0, ARRAY, 3, 4, NONE, 6, NONE)
COPY(RUNTIME, 227, cudaMemcpyFromArrayAsync, 0, 0, ARRAY, 4, NONE, 6, NONE)
COPY(RUNTIME, 228, cudaMemcpy2DAsync, 0, 0, 2, 4, 5, 7, NONE)
COPY(RUNTIME, 229, cudaMemcpy2DToArrayAsync, 0, ARRAY, 3, 5, 6, 8, NONE)
COPY(RUNTIME, 230, cudaMemcpy2DFromArrayAsync, 0, 0, ARRAY, 5, 6, 8, NONE)
COPY(RUNTIME, 231, cudaMemcpyToSymbolAsync, 0, ARRAY, 1, 2, NONE, 5, NONE)
COPY(RUNTIME, 232, cudaMemcpyFromSymbolAsync, 0, 0, ARRAY, 2, NONE, 5, NONE)
AREA(RUNTIME, 245, cudaMemcpy3D, 1, RUNTIME_3D, NONE)
AREA(RUNTIME, 246, cudaMemcpy3DAsync, 0, RUNTIME_3D, 1)
AREA(RUNTIME, 249, cudaMemcpy3DPeer, 1, RUNTIME_3D_PEER, NONE)
AREA(RUNTIME, 250, cudaMemcpy3DPeerAsync, 0, RUNTIME_3D_PEER, 1)
BATCH(RUNTIME, 482, cudaMemcpyBatchAsync, 8) /* CUDA 12.8: with an index of the failed copy */
BATCH(RUNTIME, 483, cudaMemcpyBatchAsync, 8)
BATCH_3D(RUNTIME, 484, cudaMemcpy3DBatchAsync, 4)
BATCH_3D(RUNTIME, 485, cudaMemcpy3DBatchAsync, 4)
BATCH(RUNTIME, 509, cudaMemcpyBatchAsync, 7)
BATCH(RUNTIME, 510, cudaMemcpyBatchAsync, 7)
BATCH_3D(RUNTIME, 511, cudaMemcpy3DBatchAsync, 3)
BATCH_3D(RUNTIME, 512, cudaMemcpy3DBatchAsync, 3)

/* Copies, the driver's. */
COPY(DRIVER, 276, cuMemcpyHtoD, 1, 0, 1, 2, NONE, NONE, NONE)
COPY(DRIVER, 277, cuMemcpyHtoDAsync, 0, 0, 1, 2, NONE, 3, NONE)
COPY(DRIVER, 278, cuMemcpyDtoH, 1, 0, 1, 2, NONE, NONE, NONE)
COPY(DRIVER, 279, cuMemcpyDtoHAsync, 0, 0, 1, 2, NONE, 3, NONE)
COPY(DRIVER, 282, cuMemcpyAtoH, 1, 0, ARRAY, 3, NONE, NONE, NONE)
COPY(DRIVER, 283, cuMemcpyAtoHAsync, 0, 0, ARRAY, 3, NONE, 4, NONE)
AREA(DRIVER, 287, cuMemcpy2D, 1, DRIVER_2D, NONE)
AREA(DRIVER, 288, cuMemcpy2DUnaligned, 1, DRIVER_2D, NONE)
AREA(DRIVER, 289, cuMemcpy2DAsync, 0, DRIVER_2D, 1)
AREA(DRIVER, 290, cuMemcpy3D, 1, DRIVER_3D, NONE)
AREA(DRIVER, 291, cuMemcpy3DAsync, 0, DRIVER_3D, 1)
COPY(DRIVER, 292, cuMemcpyHtoA, 1, ARRAY, 2, 3, NONE, NONE, NONE)
COPY(DRIVER, 293, cuMemcpyHtoAAsync, 0, ARRAY, 2, 3, NONE, 4, NONE)
COPY(DRIVER, 305, cuMemcpy, 1, 0, 1, 2, NONE, NONE, NONE)
COPY(DRIVER, 306, cuMemcpyAsync, 0, 0, 1, 2, NONE, 3, NONE)
COPY(DRIVER, 318, cuMemcpyPeer, 1, 0, 2, 4, NONE, NONE, NONE)
COPY(DRIVER, 319, cuMemcpyPeerAsync, 0, 0, 2, 4, NONE, 5, NONE)
AREA(DRIVER, 320, cuMemcpy3DPeer, 1, DRIVER_3D, NONE)
AREA(DRIVER, 321, cuMemcpy3DPeerAsync, 0, DRIVER_3D, 1)
COPY(DRIVER, 397, cuMemcpyHtoD, 1, 0, 1, 2, NONE, NONE, NONE) /* _ptds and _ptsz from here on */
COPY(DRIVER, 398, cuMemcpyDtoH, 1, 0, 1, 2, NONE, NONE, NONE)
COPY(DRIVER, 402, cuMemcpyHtoA, 1, ARRAY, 2, 3, NONE, NONE, NONE)
COPY(DRIVER, 403, cuMemcpyAtoH, 1, 0, ARRAY, 3, NONE, NONE, NONE)
AREA(DRIVER, 405, cuMemcpy2D, 1, DRIVER_2D, NONE)
AREA(DRIVER, 406, cuMemcpy2DUnaligned, 1, DRIVER_2D, NONE)
AREA(DRIVER, 407, cuMemcpy3D, 1, DRIVER_3D, NONE)
COPY(DRIVER, 408, cuMemcpy, 1, 0, 1, 2, NONE, NONE, NONE)
COPY(DRIVER, 409, cuMemcpyPeer, 1, 0, 2, 4, NONE, NONE, NONE)
AREA(DRIVER, 410, cuMemcpy3DPeer, 1, DRIVER_3D, NONE)
COPY(DRIVER, 418, cuMemcpyAsync, 0, 0, 1, 2, NONE, 3, NONE)
COPY(DRIVER, 419, cuMemcpyHtoAAsync, 0, ARRAY, 2, 3, NONE, 4, NONE)
COPY(DRIVER, 420, cuMemcpyAtoHAsync, 0, 0, ARRAY, 3, NONE, 4, NONE)
COPY(DRIVER, 421, cuMemcpyHtoDAsync, 0, 0, 1, 2, NONE, 3, NONE)
COPY(DRIVER, 422, cuMemcpyDtoHAsync, 0, 0, 1, 2, NONE, 3, NONE)
AREA(DRIVER, 424, cuMemcpy2DAsync, 0, DRIVER_2D, 1)
AREA(DRIVER, 425, cuMemcpy3DAsync, 0, DRIVER_3D, 1)
COPY(DRIVER, 426, cuMemcpyPeerAsync, 0, 0, 2, 4, NONE, 5, NONE)
AREA(DRIVER, 427, cuMemcpy3DPeerAsync, 0, DRIVER_3D, 1)
BATCH(DRIVER, 776, cuMemcpyBatchAsync, 8) /* CUDA 12.8: with an index of the failed copy */
BATCH(DRIVER, 777, cuMemcpyBatchAsync, 8)
BATCH_3D(DRIVER, 778, cuMemcpy3DBatchAsync, 4)
BATCH_3D(DRIVER, 779, cuMemcpy3DBatchAsync, 4)
BATCH(DRIVER, 796, cuMemcpyBatchAsync, 7) /* _v2 */
BATCH(DRIVER, 797, cuMemcpyBatchAsync, 7)
BATCH_3D(DRIVER, 798, cuMemcpy3DBatchAsync, 3)
BATCH_3D(DRIVER, 799, cuMemcpy3DBatchAsync, 3)
