/* The exchange of a rail posted by the GPU, as docs/decisions/nodes.md has it: what a command of NCCL's
 * network would be in a list of kernels. Compiled against NCCL's headers; never run.
 */
#include <nccl_device.h>

/* Row n of `bytes` from `out` goes to node n of the rail, into the row of this node from `in`; all of
 * it lies in one window of NCCL's, alike on all ranks. Nothing is said of how many calls there were:
 * a signal's shadow counts them, so a graph can be replayed. */
extern "C" __global__ void post(ncclDevComm comm, ncclWindow_t window, size_t out, size_t in,
                                size_t bytes, ncclGinSignal_t signal)
{
    ncclTeam rail = ncclTeamRail(comm);
    ncclGin gin(comm, 0);
    for (int node = threadIdx.x; node < rail.nRanks; node += blockDim.x)
        if (node != rail.rank)
            gin.put(rail, node, window, in + rail.rank * bytes, window, out + node * bytes, bytes,
                    ncclGin_SignalInc{signal});
    if (threadIdx.x == 0)
        gin.increaseSignalShadow(signal, rail.nRanks - 1);
    ncclCoopCta cta;
    cta.sync();
    gin.waitSignalMeetShadow(cta, signal); /* what others send is here, */
    gin.flush(cta);                        /* and what is sent may be packed anew */
}
