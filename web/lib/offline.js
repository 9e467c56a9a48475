export async function keepOffline(_note) {}
