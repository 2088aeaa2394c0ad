/* A stand-in for NVIDIA's driver library. Only the planner's child process opens it (described.h).
 *
 * cuDNN builds execution plans for a GPU that is only described. Its runtime-compiled engines then pass the finished
 * kernel to the driver. In this stand-in those calls succeed and do nothing. So a plan is built or refused for the same
 * reasons as on the real device. CUDA's runtime asks for its functions through cuGetProcAddress. The stand-in tells the
 * runtime that there is no driver, so nothing can be executed.
 */
enum { success = 0, stub_library = 34 };

static void* const token = (void*)0x10; /* a handle that is never followed */

int cuInit(unsigned flags) { return (void)flags, success; }
int cuDriverGetVersion(int* version) { return *version = 13000, success; }
int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
  (void)name, (void)version, (void)flags;
  *function = 0;
  return stub_library;
}
int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags, int* status) {
  (void)status;
  return cuGetProcAddress(name, function, version, flags);
}

int cuGetErrorName(int error, const char** text) {
  *text = error == success ? "CUDA_SUCCESS" : "CUDA_ERROR_STUB_LIBRARY";
  return success;
}
int cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }

int cuDeviceGetCount(int* count) { return *count = 0, success; }
int cuDeviceGet(int* device, int ordinal) { return (void)device, (void)ordinal, stub_library; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return *value = 0, (void)attribute, (void)device, stub_library;
}
int cuCtxGetCurrent(void** context) { return *context = 0, stub_library; }
int cuCtxGetDevice(int* device) { return (void)device, stub_library; }

int cuLibraryLoadData(void** library, const void* code, void* a, void* b, unsigned n, void* c, void* d, unsigned m) {
  (void)code, (void)a, (void)b, (void)n, (void)c, (void)d, (void)m;
  return *library = token, success;
}
int cuLibraryUnload(void* library) { return (void)library, success; }
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  return (void)library, (void)name, *kernel = token, success;
}
int cuLibraryGetModule(void** module, void* library) { return (void)library, *module = token, success; }
int cuKernelGetFunction(void** function, void* kernel) { return (void)kernel, *function = token, success; }
int cuKernelGetAttribute(int* value, int attribute, void* kernel, int device) {
  return (void)attribute, (void)kernel, (void)device, *value = 0, success;
}
int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
  return (void)attribute, (void)value, (void)kernel, (void)device, success;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  return (void)function, (void)attribute, (void)value, success;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
  return (void)attribute, (void)function, *value = 0, success;
}
int cuModuleLoadData(void** module, const void* image) { return (void)image, *module = token, success; }
int cuModuleLoadDataEx(void** module, const void* image, unsigned n, void* options, void* values) {
  return (void)image, (void)n, (void)options, (void)values, *module = token, success;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  return (void)module, (void)name, *function = token, success;
}
int cuModuleUnload(void* module) { return (void)module, success; }

/* cuDNN's compiler crashes when this function is missing. It works without the table when the call is refused. */
int cuGetExportTable(const void** table, const void* id) { return (void)id, *table = 0, stub_library; }

/* cuDNN and its compiler also look these up. The functions are of no use without a device. */
#define REFUSE(name) \
  int name(void) { return stub_library; }
REFUSE(cuCtxGetLimit)
REFUSE(cuCtxPopCurrent)
REFUSE(cuCtxPushCurrent)
REFUSE(cuDevicePrimaryCtxRelease)
REFUSE(cuDevicePrimaryCtxReset)
REFUSE(cuDevicePrimaryCtxRetain)
REFUSE(cuLaunchCooperativeKernel)
REFUSE(cuLaunchKernel)
REFUSE(cuLaunchKernelEx)
REFUSE(cuLibraryLoadFromFile)
REFUSE(cuLinkAddData)
REFUSE(cuLinkAddData_v2)
REFUSE(cuLinkAddFile_v2)
REFUSE(cuLinkComplete)
REFUSE(cuLinkCreate)
REFUSE(cuLinkCreate_v2)
REFUSE(cuLinkDestroy)
REFUSE(cuMemcpyDtoH_v2)
REFUSE(cuModuleGetGlobal_v2)
REFUSE(cuModuleLoadFatBinary)
REFUSE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSE(cuOccupancyMaxPotentialClusterSize)
REFUSE(cuStreamGetCtx)
REFUSE(cuStreamSynchronize)
REFUSE(cuTensorMapEncodeTiled)
