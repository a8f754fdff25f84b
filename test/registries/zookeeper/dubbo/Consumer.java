// SPDX-License-Identifier: Apache-2.0

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.dubbo.common.URL;
import org.apache.dubbo.config.ApplicationConfig;
import org.apache.dubbo.registry.Registry;
import org.apache.dubbo.registry.RegistryFactory;
import org.apache.dubbo.rpc.model.ApplicationModel;

/**
 * A caller that finds providers with Dubbo's own ZooKeeper client. It writes a
 * line for each notification: host:port|weight for each provider, separated by
 * spaces. It ends with its standard input.
 */
public class Consumer {
    public static void main(String[] args) throws Exception {
        String server = args[0], service = args[1], version = args[2];
        ApplicationModel application = ApplicationModel.defaultModel();
        application.getApplicationConfigManager().setApplication(new ApplicationConfig("caller"));
        RegistryFactory factory =
                application.getExtensionLoader(RegistryFactory.class).getAdaptiveExtension();
        Registry registry = factory.getRegistry(
                URL.valueOf("zookeeper://" + server + "/org.apache.dubbo.registry.RegistryService", application));
        registry.subscribe(
                URL.valueOf(
                        "consumer://127.0.0.1/" + service + "?interface=" + service + "&version=" + version
                                + "&category=providers&side=consumer&check=false",
                        application),
                Consumer::show);
        while (System.in.read() >= 0) {
            // Only the end matters.
        }
        System.exit(0);
    }

    private static void show(List<URL> told) {
        List<String> known = new ArrayList<>();
        for (URL url : told) {
            // Dubbo signals an empty list with a URL of the protocol empty.
            if (!"empty".equals(url.getProtocol())) {
                known.add(url.getHost() + ":" + url.getPort() + "|" + url.getParameter("weight"));
            }
        }
        Collections.sort(known);
        System.out.println("instances " + String.join(" ", known));
        System.out.flush();
    }
}
