// SPDX-License-Identifier: Apache-2.0

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryOneTime;
import org.apache.curator.x.discovery.ServiceCache;
import org.apache.curator.x.discovery.ServiceDiscovery;
import org.apache.curator.x.discovery.ServiceDiscoveryBuilder;
import org.apache.curator.x.discovery.ServiceInstance;
import org.apache.curator.x.discovery.details.ServiceCacheListener;

/**
 * A caller that finds instances as users of Curator do, with a ServiceCache. It
 * writes a line with what it knows on every change: host:port|payload for each
 * instance, separated by spaces. It ends with its standard input.
 */
public class Consumer {
    public static void main(String[] args) throws Exception {
        String servers = args[0], path = args[1], service = args[2];
        Class<?> payload = Class.forName(args[3]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(servers, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        follow(client, path, service, payload);
        while (System.in.read() >= 0) {
            // Only the end matters.
        }
        System.exit(0);
    }

    private static <T> void follow(CuratorFramework client, String path, String service, Class<T> payload)
            throws Exception {
        ServiceDiscovery<T> discovery =
                ServiceDiscoveryBuilder.builder(payload).client(client).basePath(path).build();
        discovery.start();
        ServiceCache<T> cache = discovery.serviceCacheBuilder().name(service).build();
        cache.addListener(new ServiceCacheListener() {
            @Override
            public void cacheChanged() {
                show(cache);
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {
                // The cache keeps its content while disconnected.
            }
        });
        cache.start();
        show(cache);
    }

    private static synchronized <T> void show(ServiceCache<T> cache) {
        List<String> known = new ArrayList<>();
        for (ServiceInstance<T> i : cache.getInstances()) {
            known.add(i.getAddress() + ":" + i.getPort() + "|" + i.getPayload());
        }
        Collections.sort(known);
        System.out.println("instances " + String.join(" ", known));
        System.out.flush();
    }
}
