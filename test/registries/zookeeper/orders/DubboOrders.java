// SPDX-License-Identifier: Apache-2.0

package org.example;

import java.util.List;
import java.util.stream.Collectors;
import org.apache.dubbo.common.URL;
import org.apache.dubbo.config.ApplicationConfig;
import org.apache.dubbo.config.ProtocolConfig;
import org.apache.dubbo.config.RegistryConfig;
import org.apache.dubbo.config.ServiceConfig;
import org.apache.dubbo.config.bootstrap.DubboBootstrap;
import org.apache.dubbo.registry.Registry;
import org.apache.dubbo.registry.RegistryFactory;
import org.apache.dubbo.remoting.http12.rest.Mapping;
import org.apache.dubbo.remoting.http12.rest.Param;
import org.apache.dubbo.rpc.model.ApplicationModel;

/**
 * An application that registers itself with Dubbo, as one that nobody has rewritten for Usher: SERVER ROOT ADDRESS PORT. Its
 * protocol, Triple, answers HTTP: /slow?d=250ms after that time, and / at once; /end ends it without a word. With the
 * arguments SERVER ROOT it is a caller instead: it writes the instances that Dubbo's client would choose from, again when
 * they change. It ends with its standard input, if it has one.
 */
public class DubboOrders {
    public static void main(String[] args) throws Exception {
        if (args.length == 2) {
            call(args[0], args[1]);
            while (System.in.read() >= 0) {
                // Only the end matters.
            }
            System.exit(0);
        }
        serve(args[0], args[1], args[2], Integer.parseInt(args[3]));
        Thread.currentThread().join();
    }

    private static void serve(String server, String root, String address, int port) {
        ApplicationConfig application = new ApplicationConfig("orders");
        application.setQosHost(address);
        application.setQosAcceptForeignIp(true);
        application.setQosAnonymousAllowCommands("offline,online");
        application.setRegisterMode("interface");
        RegistryConfig registry = new RegistryConfig("zookeeper://" + server);
        registry.setGroup(root);
        ProtocolConfig protocol = new ProtocolConfig("tri", port);
        protocol.setHost(address);
        ServiceConfig<Orders> service = new ServiceConfig<>();
        service.setInterface(Orders.class);
        service.setRef(new Answers());
        DubboBootstrap.getInstance()
                .application(application).registry(registry).protocol(protocol).service(service).start();
    }

    private static void call(String server, String root) {
        ApplicationModel application = ApplicationModel.defaultModel();
        application.getApplicationConfigManager().setApplication(new ApplicationConfig("caller"));
        RegistryFactory factory =
                application.getExtensionLoader(RegistryFactory.class).getAdaptiveExtension();
        Registry registry = factory.getRegistry(URL.valueOf(
                "zookeeper://" + server + "/org.apache.dubbo.registry.RegistryService?group=" + root, application));
        String service = Orders.class.getName();
        registry.subscribe(
                URL.valueOf(
                        "consumer://127.0.0.1/" + service + "?interface=" + service
                                + "&category=providers&side=consumer&check=false",
                        application),
                DubboOrders::show);
    }

    private static void show(List<URL> found) {
        // Dubbo signals an empty list with a URL of the protocol empty.
        System.out.println("instances" + found.stream()
                .filter(url -> !"empty".equals(url.getProtocol()))
                .map(url -> " " + url.getHost() + ":" + url.getPort())
                .sorted().collect(Collectors.joining()));
        System.out.flush();
    }
}

@Mapping("")
interface Orders {
    @Mapping("/")
    String now();

    @Mapping("/slow")
    String slow(@Param("d") String time) throws Exception;

    @Mapping("/end")
    String end() throws Exception;
}

class Answers implements Orders {
    @Override
    public String now() {
        return "answered";
    }

    @Override
    public String slow(String time) throws Exception {
        Thread.sleep(time.endsWith("ms") ? Long.parseLong(time.substring(0, time.length() - 2))
                : (long) (1000 * Double.parseDouble(time.substring(0, time.length() - 1))));
        return "answered";
    }

    @Override
    public String end() throws Exception {
        Thread.sleep(2000);
        Runtime.getRuntime().halt(1);
        return "";
    }
}
